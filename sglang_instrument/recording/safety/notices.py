"""Log each kind of failure once, on the `sglang_instrument` logger, and count how often it happens."""

import sys
from typing import Final

from sglang_instrument.recording.safety.exception_origins import is_programs_own, name_of_type

_counts: dict[str, int] = {}
_texts: dict[str, str] = {}
_KINDS_LIMIT: Final = 500  # distinct notices kept; a flood of new ones must not fill the memory


def notice(key: str, text: str) -> None:
    """Log `text` as a warning the first time `key` happens in this process; count every time."""
    if key in _counts:
        _counts[key] += 1
        return
    if len(_counts) >= _KINDS_LIMIT:
        return
    _texts[key] = text  # before the count: another thread may be reading both
    _counts[key] = 1
    try:
        import logging  # not at the top: most processes log nothing; at the interpreter's end it may be gone

        logging.getLogger("sglang_instrument").warning("sglang_instrument: %s", text)
    except BaseException:  # a user's broken logging handler must not disturb training
        _reraise_if_programs_own()


def log_swallowed(where: str, error: BaseException) -> None:
    """Log an error that is kept from training, while it is handled; re-raise one of the program's own."""
    try:
        _reraise_if_programs_own()
        _log(where, error)
    except MemoryError:
        pass
    finally:
        del error  # this frame is in its traceback: a cycle would keep the program's objects alive


def _log(where: str, error: BaseException) -> None:
    try:
        kind = name_of_type(type(error))
        notice(f"{where}: {kind}", f"{where} failed and was skipped: {_said_by(error, kind)}")
    except BaseException:  # there is no memory
        _reraise_if_programs_own()


def _said_by(error: BaseException, kind: str) -> str:
    try:
        return str.__str__(repr(error))
    except BaseException:  # the exception's own code failed
        _reraise_if_programs_own()
        return kind


def _reraise_if_programs_own() -> None:
    """Do what the guard does, which counts with the functions here."""
    _, error, trace = sys.exc_info()
    try:
        if error is not None and is_programs_own(error, trace):
            raise error
    finally:
        del error, trace  # as above


def noticed() -> list[dict[str, object]]:
    """Return the notices so far: `{"notice", "times"}` each, in the order of first appearance."""
    return [{"notice": _texts[key], "times": times} for key, times in list(_counts.items())]


def forget() -> None:
    """Forget all notices: the next occurrence of each is logged again."""
    _counts.clear()
    _texts.clear()
