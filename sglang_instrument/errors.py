"""Name what can go wrong where a person is at the keyboard; training never sees one of these."""


class InstrumentError(Exception):
    """Say what went wrong, where, and what would be right."""


class ConfigError(InstrumentError):
    """A setting has a value it cannot have."""


class TableError(InstrumentError):
    """A patch table, or an expression in it, is not what the table language allows."""


class TargetError(InstrumentError):
    """A patch's target is not there, or is not what the table expects."""


class LogError(InstrumentError):
    """A run's folder or file cannot be read as one."""
