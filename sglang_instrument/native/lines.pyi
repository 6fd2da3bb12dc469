"""What Python sees of lines.pyx."""

from collections.abc import Callable
from typing import Any

from sglang_instrument.recording.context import Context, Scope
from sglang_instrument.recording.lines import Piece
from sglang_instrument.recording.spans import Span
from sglang_instrument.recording.tasks import Task

STAMP: str

class Encoder:
    def __init__(
        self,
        offset_us: int,
        timestamp: Callable[[int], str],
        scope_of: Callable[[Context], Scope],
        thread_task: Callable[[int], Task],
        encode_span: Callable[[Span, Scope, Task, int | None], tuple[bytes, bool] | None],
    ) -> None: ...
    def encode_chunk(self, spans: list[Any], begin: int) -> tuple[int, list[Piece]]: ...
