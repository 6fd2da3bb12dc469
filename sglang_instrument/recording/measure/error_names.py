"""Name an exception in a record, whatever its class and its `__str__` do."""

from sglang_instrument.recording.measure.values import reduce_value
from sglang_instrument.recording.safety.guard import let_through, name_of_type

_with_messages = False


def log_error_messages(on: bool) -> None:
    """Log the text of exceptions beside their type, or, as by default, the type alone."""
    global _with_messages
    _with_messages = on


def name_error(error: type[BaseException], value: BaseException | None) -> str:
    """Return the exception's type; not itself, whose frames hold the trainer's tensors."""
    name = "?"
    try:
        name = name_of_type(error)
        return f"{name}: {reduce_value(str(value)) if value is not None else ''}" if _with_messages else name
    except BaseException:  # the exception's own code failed, or there is no memory
        let_through()
        return name
