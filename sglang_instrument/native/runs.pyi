from collections.abc import Callable
from functools import partial
from typing import Any

from sglang_instrument.patching.runs import FullSpan as FullSpan
from sglang_instrument.patching.runs import GeneratorSpan as GeneratorSpan
from sglang_instrument.patching.runs import RegionSpan as RegionSpan
from sglang_instrument.patching.runs import ReportingSpan as ReportingSpan
from sglang_instrument.patching.runs import Skipped as Skipped
from sglang_instrument.recording.context import Context

STAMP: str
skipped: Skipped

class Opener(partial[Any]): ...

def connect(
    *,
    unbound: object,
    nothing_bound: Context,
    naming_process: Callable[..., None],
    naming_request: Callable[[], str],
) -> None: ...
