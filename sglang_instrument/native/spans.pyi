"""What Python sees of spans.pyx: names of recording/spans.py, tasks.py, waiting.py, and their hand-over."""

from collections.abc import Callable
from typing import Any

from sglang_instrument.recording.losses import lost
from sglang_instrument.recording.spans import (
    Buffer,
    LostSpan,
    Span,
    SyncedSpan,
    WatchedSpan,
    begin,
    event,
    lose,
    record,
    span,
)
from sglang_instrument.recording.tasks import (
    Task,
    counted,
    current,
    forget_gone,
    forget_tasks,
    ignore_asyncio,
    know_asyncio,
    known,
    look_up,
    thread_task,
)
from sglang_instrument.recording.waiting import Waits, waited, waits

__all__ = [
    "STAMP",
    "LostSpan",
    "Span",
    "SyncedSpan",
    "Task",
    "Waits",
    "WatchedSpan",
    "begin",
    "call_at_entry",
    "call_by_home",
    "connect",
    "counted",
    "current",
    "event",
    "forget_gone",
    "forget_tasks",
    "ignore_asyncio",
    "know_asyncio",
    "known",
    "look_up",
    "lose",
    "lost",
    "note_closed",
    "record",
    "span",
    "thread_task",
    "use_buffer",
    "waited",
    "waits",
]

STAMP: str
_threads: dict[int, Task]

def call_by_home(kind: type, module: str) -> None: ...
def connect(**what: Any) -> None: ...
def use_buffer(
    taking: Buffer,
    on_first_opened: Callable[[], object] | None,
    on_all_closed: Callable[[], object] | None,
) -> None: ...
def note_closed(left: Span) -> None: ...
def call_at_entry(hook: Callable[[Span], object] | None) -> None: ...
