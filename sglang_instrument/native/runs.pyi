from collections.abc import Callable

from sglang_instrument.patching.runs import Run as Run
from sglang_instrument.patching.runs import Skipped
from sglang_instrument.patching.runs import begin_reading as begin_reading

STAMP: str

def connect(leaving: Callable[..., None], counting: Callable[..., None], skipped: Skipped) -> None: ...
