"""Keep the blocks of steps in which a process was forked: the child goes on inside them, and leaves them."""

from sglang_instrument.recording.measure.context import CURRENT, Context
from sglang_instrument.recording.measure.scopes import Scope, forget_scope, keep_scope

_inherited: list[Scope] = []


def keep_inherited() -> None:
    """In a forked child, count the blocks around the fork as open; those of other threads are gone.

    The scopes begin without records: those so far are the parent's.
    """
    _inherited.clear()
    context: Context | None = CURRENT.get()
    while context is not None:
        if context.scope is not None and context.opened and not context.ended:
            inherit(context.scope)
        context = context.outer


def inherit(scope: Scope) -> None:
    """Count one more block of this scope as inherited."""
    if scope not in _inherited:
        _inherited.append(scope)
        scope.open = scope.written = scope.dropped = scope.sampled_out = 0
        scope.ended = False
        keep_scope(scope)
    scope.open += 1


def forget_inherited() -> None:
    """Forget these blocks: the child begins with work of its own, and never leaves them."""
    for scope in _inherited:
        forget_scope(scope)
    _inherited.clear()
