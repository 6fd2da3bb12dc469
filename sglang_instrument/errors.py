"""The exceptions that commands and `install()` raise for a person; training never sees them."""

from sglang_instrument.plain_text import plain


class InstrumentError(Exception):
    """The base of all: its message says where, what is wrong, and what would be right.

    Messages quote what files hold, and Python prints them as they are: control characters are escaped.
    """

    def __str__(self) -> str:
        """Return the message as one line without control characters."""
        return plain(super().__str__())


class ConfigError(InstrumentError):
    """A setting has a value that it cannot have."""


class TableError(InstrumentError):
    """A patch table, or an expression in it, breaks the rules of the table language."""


class TargetError(InstrumentError):
    """The target of a patch is missing, or differs from what the table expects."""


class LogError(InstrumentError):
    """A folder or file is not that of a run, or cannot be read."""
