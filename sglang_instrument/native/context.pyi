from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from sglang_instrument.recording.context import Bound as Bound
from sglang_instrument.recording.context import Context as Context

STAMP: str

def derive(before: Context, changes: Mapping[str, Any]) -> Context: ...
def push(changes: Mapping[str, Any], root: bool = False) -> Bound: ...
def connect(
    *,
    current: ContextVar[Context],
    unbound: Context,
    identifier: Callable[[Any], Any],
    integer: Callable[[Any], int | None],
    place: Callable[[Context, Mapping[str, Any]], Any],
    opening: Callable[[Any], None],
    closing: Callable[[Any], None],
    longest_id: int,
) -> None: ...
