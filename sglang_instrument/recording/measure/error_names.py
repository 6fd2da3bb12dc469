"""Name an exception in a record, whatever its class and its `__str__` do."""

from sglang_instrument.recording.measure.values import reduce_value
from sglang_instrument.recording.safety.exception_origins import call, name_of_type
from sglang_instrument.recording.safety.guard import reraise_if_programs_own

_with_messages = False


def log_error_messages(on: bool) -> None:
    """Log the message of exceptions beside their type; by default only the type is logged."""
    global _with_messages
    _with_messages = on


def name_error(error: type[BaseException], value: BaseException | None) -> str:
    """Return the exception's type as text; the exception itself would keep the trainer's tensors alive."""
    name = "?"
    try:
        name = name_of_type(error)
        return (
            f"{name}: {reduce_value(call(str, value)) if value is not None else ''}"
            if _with_messages
            else name
        )
    except BaseException:  # the exception's own code failed, or memory has run out
        reraise_if_programs_own()
        return name
