"""Read the metrics that verl logs to a file: `trainer.logger='["file"]'`, a JSON object a line.

`FileLogger` in `verl/utils/tracking.py` writes it. The metrics `timing_s/...` tell how long the parts of a
step took. They have no times of day.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from sglang_instrument.analysis.foreign.records.json_lines import JsonLines
from sglang_instrument.analysis.foreign.records.rows import ForeignLog, to_rows
from sglang_instrument.analysis.reading.lines import Integer

NAME: Final = "verl's metrics in a file"
FILES: Final = "PROJECT/EXPERIMENT.jsonl of trainer.logger=[file]"
_CANNOT_SHOW: Final = [
    "requests, turns, tools, workers and the engine: only how long each part of a step took",
    "times of day: steps are shown one after the other, the last one ending when the file was changed",
]
_STEP: Final = "step"
#: Our event for each part of a step, in the order in which they run.
_PARTS: Final = {
    "gen": "trainer_generate",
    "reward": "trainer_reward",
    "old_log_prob": "trainer_old_log_prob",
    "ref": "trainer_ref_log_prob",
    "RefPolicy": "trainer_ref_log_prob",
    "values": "trainer_values",
    "adv": "trainer_advantage",
    "update_critic": "trainer_update_critic",
    "update_actor": "trainer_update_actor",
    "save_checkpoint": "trainer_save_checkpoint",
    "update_weights": "weights_update",
    "testing": "trainer_validate",
}
_COLUMNS: Final = {"event": pl.String, "step": pl.Int64, "start_us": pl.Int64, "end_us": pl.Int64}
_LONGEST_SEC: Final = 1e8
_Row = tuple[str, int, int, int]


class _Line(msgspec.Struct, gc=False):
    step: Integer
    data: dict[str, Any]


_LINES: Final = JsonLines(_Line)


def claims(path: Path, head: bytes) -> bool:
    """Return whether a file has such metrics."""
    return head.startswith(b'{"step":') and b'"data":{' in head and b'"timing_s/' in head


def read(paths: Sequence[Path]) -> ForeignLog:
    """Return the parts of each step, one after the other."""
    log = ForeignLog(pl.DataFrame(), [], list(_CANNOT_SHOW))
    rows: list[_Row] = []
    for path in paths:
        steps = _timings(chain.from_iterable(_LINES.read(path, log)))
        rows += _one_after_the_other(steps, path.stat().st_mtime_ns // 1000)
    frame = pl.DataFrame(rows, schema=_COLUMNS, orient="row")
    log.rows = to_rows(frame.with_columns(role=pl.lit("trainer"), task=pl.lit(0)))
    return log


def _timings(lines: Iterator[_Line]) -> dict[int, dict[str, int]]:
    """Return by step the microseconds of each part; of a step that was logged twice, the last ones."""
    steps: dict[int, dict[str, int]] = {}
    for line in lines:
        timings = steps.setdefault(line.step, {})
        for name, value in line.data.items():
            if name.startswith("timing_s/") and type(value) in (int, float) and 0 <= value < _LONGEST_SEC:
                timings[name.removeprefix("timing_s/")] = int(value * 1e6)
    return {step: timings for step, timings in steps.items() if timings}


def _one_after_the_other(steps: dict[int, dict[str, int]], end_us: int) -> Iterator[_Row]:
    """Yield the steps and their parts, so that the last step ends at `end_us`."""
    lasted = {step: max(timings.get(_STEP, 0), _sum(timings)) for step, timings in steps.items()}
    begin = end_us - sum(lasted.values())
    for step, timings in steps.items():
        yield "trainer_step", step, begin, begin + lasted[step]
        now = begin
        for part, event in _PARTS.items():
            if part in timings:
                yield event, step, now, now + timings[part]
                now += timings[part]
        begin += lasted[step]


def _sum(timings: dict[str, int]) -> int:
    return sum(timings.get(part, 0) for part in _PARTS)
