"""Read the metrics that verl logs to a file: `trainer.logger='["file"]'`, a JSON object a line.

`FileLogger` in `verl/utils/tracking.py` writes it. The metrics `timing_s/...` tell how long the parts of a
step took. They have no times of day.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from sglang_instrument.analysis.foreign.records.json_lines import JsonLines
from sglang_instrument.analysis.foreign.records.metric_parts import (
    StepTimes,
    one_after_the_other,
    step_rows,
)
from sglang_instrument.analysis.foreign.records.rows import ForeignLog, to_rows
from sglang_instrument.analysis.reading.records.lines import Integer

NAME: Final = "verl's metrics in a file"
FILES: Final = "PROJECT/EXPERIMENT.jsonl of trainer.logger=[file]"
_CANNOT_SHOW: Final = [
    "requests, turns, tools, workers and the engine: only how long each part of a step took",
    "times of day: steps are shown one after the other, the last one ending when the file was changed",
]


class _MetricsLine(msgspec.Struct, gc=False):
    step: Integer
    data: dict[str, Any]


_LINES: Final = JsonLines(_MetricsLine)


def claims(path: Path, head: bytes) -> bool:
    """Return whether a file has such metrics."""
    begin = head.lstrip()[:2000].replace(b" ", b"")
    return begin.startswith(b'{"step":') and b'"data":{' in begin and b'"timing_s/' in head


def read(paths: Sequence[Path]) -> ForeignLog:
    """Return the parts of each step, one after the other."""
    log = ForeignLog(pl.DataFrame(), [], list(_CANNOT_SHOW))
    frames: list[pl.DataFrame] = []
    for path in paths:
        steps: dict[int, StepTimes] = {}
        for line in chain.from_iterable(_LINES.read(path, log)):
            steps.setdefault(line.step, StepTimes()).add(line.data)
        steps = {number: step for number, step in steps.items() if step.parts}
        frames.append(step_rows(steps, one_after_the_other(steps, path.stat().st_mtime_ns // 1000)))
    log.rows = to_rows(pl.concat(frames, how="diagonal_relaxed"))
    return log
