"""Copy decorated functions, and give the copies rewritten code while something is recorded."""

from types import CodeType, FunctionType
from typing import Any

from sglang_instrument.patching.code_constants import original_of
from sglang_instrument.patching.decorating import notes, rebuilt
from sglang_instrument.patching.decorating.notes import NOTE, NOTES, Decoration, FunctionNote, decorations_of
from sglang_instrument.recording.measure import spans
from sglang_instrument.recording.safety.notices import log_swallowed


def decorated_copy(function: FunctionType, decoration: Decoration) -> FunctionType | None:
    """Return a copy of a function that is rewritten while something is recorded; None if that is impossible.

    Raises:
        TableError: An expression of the decoration is invalid.
    """
    from sglang_instrument.patching.decorating.suitable import is_suitable

    code = original_of(function.__code__)
    if not is_suitable(function, code, decoration):
        return None
    copy = _copied(function, code)
    before = decorations_of(function)
    has_regions = code is not function.__code__ and not before
    _note(copy, FunctionNote(copy, (decoration, *before), function if has_regions else None))
    return copy


def note_again(
    function: FunctionType, sent: tuple[tuple[Any, ...], ...], rewritten: CodeType | None
) -> FunctionNote:
    """Note a function that another process pickled by value, perhaps while it ran rewritten code."""
    note = FunctionNote(function, tuple(Decoration(*decoration) for decoration in sent))
    code = function.__code__
    note.original, note.rewritten = original_of(code), rewritten or code
    function.__code__ = note.original
    _note(function, note)
    return note


def _note(function: FunctionType, note: FunctionNote) -> None:
    vars(function)[NOTE] = note
    NOTES[function] = note
    rebuilt.expect(function)
    spans.at_switch = _switch
    if spans.current_buffer() is not spans.OFF:
        rebuilt.name_rebuilt()  # those of modules whose import has ended since
        _put(function, note)


def _switch(is_on: bool) -> None:
    """Give all decorated functions their rewritten code, or their original code."""
    rebuilt.name_rebuilt()
    change = _put if is_on else _restore
    for reference in NOTES.keyrefs():  # a list: another thread may decorate
        function = reference()
        note = None if function is None else NOTES.get(function)
        if function is not None and note is not None:
            change(function, note)


def _put(function: FunctionType, note: FunctionNote) -> None:
    if original_of(function.__code__) is not function.__code__:
        return  # a table patched it, with its decorations
    try:
        rewritten = _rewritten(function, note)
        if rewritten is not None:
            function.__code__ = rewritten
    except BaseException as error:
        log_swallowed("rewriting a decorated function", error)


def _rewritten(function: FunctionType, note: FunctionNote) -> CodeType | None:
    """Return the rewritten code of a function that runs its original code; the note keeps both."""
    code = function.__code__
    if note.rewritten is None or note.original is not code:
        # Imported here: it imports the rewriter, which only processes that record need.
        from sglang_instrument.patching.decorating.rewriting import rewritten_code

        note.original, note.rewritten = code, rewritten_code(function, note)
    return note.rewritten


def _rewritten_to_send(function: FunctionType, note: FunctionNote) -> CodeType | None:
    try:
        is_rewritten = original_of(function.__code__) is not function.__code__
        return None if is_rewritten else _rewritten(function, note)
    except BaseException as error:
        log_swallowed("rewriting a decorated function", error)
        return None


notes.rewrite_to_send = _rewritten_to_send


def _restore(function: FunctionType, note: FunctionNote) -> None:
    code, original = function.__code__, note.original
    if original is None or original_of(code) is not original:
        return  # not rewritten, or replaced by other code since
    try:
        if code.co_flags != original.co_flags:  # types.coroutine() above the decorator
            original = original.replace(co_flags=code.co_flags)
        function.__code__ = original
    except BaseException as error:
        log_swallowed("restoring a decorated function", error)


def _copied(function: FunctionType, code: CodeType) -> FunctionType:
    copy = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__.update(vars(function))
    for name in ("__qualname__", "__module__", "__doc__", "__annotations__", "__type_params__"):
        if hasattr(function, name):
            setattr(copy, name, getattr(function, name))
    return copy
