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
    event,
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
from sglang_instrument.recording.waiting import Waits, counting, waited, waits

__all__ = [
    "STAMP",
    "LostSpan",
    "Span",
    "Start",
    "SyncedSpan",
    "Task",
    "Waits",
    "WatchedSpan",
    "call_at_entry",
    "call_by_home",
    "connect",
    "counted",
    "counting",
    "current",
    "event",
    "forget_gone",
    "forget_tasks",
    "ignore_asyncio",
    "know_asyncio",
    "known",
    "look_up",
    "lost",
    "record",
    "span",
    "thread_task",
    "use_buffer",
    "waited",
    "waits",
]

STAMP: str
_threads: dict[int, Task]

class Start:
    def __init__(
        self, kind: type[Span], event: str, phase: str | None, sync: bool | None, waited: int | None
    ) -> None: ...
    def __call__(self) -> Span: ...

def call_by_home(kind: type, module: str) -> None: ...
def connect(**what: Any) -> None: ...
def use_buffer(
    taking: Buffer, on_first_opened: Callable[[], object], on_all_closed: Callable[[], object]
) -> None: ...
def call_at_entry(hook: Callable[[Span], object] | None) -> None: ...
