"""Read what verl prints of each step (`trainer.logger='["console"]'`), which most of its users have."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from sglang_instrument.analysis.foreign.records.console_steps import MARK, console_steps
from sglang_instrument.analysis.foreign.records.metric_parts import one_after_the_other, step_rows
from sglang_instrument.analysis.foreign.records.rows import ForeignLog, to_rows
from sglang_instrument.analysis.foreign.sglang.log_marks import holds, lines_of

NAME: Final = "what verl prints of its steps"
FILES: Final = 'the trainer\'s output, with lines "step:1 - ... timing_s/gen:..."'
_CANNOT_SHOW: Final = [
    "requests, turns, tools, workers and the engine: only how long each part of a step took",
    "times of day: steps are shown one after the other, the last one ending when the file was changed",
]
_MISREAD: Final = '{count:,} lines with "timing_s/" that are none of a step'
_TEXTS: Final = (".log", ".txt", ".out", ".err", ".gz", ".zst")


def claims(path: Path, head: bytes) -> bool:
    """Return whether a file has such lines, near its begin or later."""
    if head.startswith(b"{") or b"\0" in head:
        return False
    return MARK in head or (path.suffix in _TEXTS and holds(path, [MARK]))


def read(paths: Sequence[Path]) -> ForeignLog:
    """Return the parts of each step, one after the other."""
    log = ForeignLog(pl.DataFrame(), [*paths], list(_CANNOT_SHOW))
    frames: list[pl.DataFrame] = []
    for number, path in enumerate(paths):
        lines = lines_of(path, number, [MARK], log.unreadable)["line"].to_list()
        steps = console_steps(lines)
        begins = one_after_the_other(steps, path.stat().st_mtime_ns // 1000)
        frames.append(step_rows(steps, begins))
        if lines and not steps:
            log.misread.append(_MISREAD.format(count=len(lines)))
            log.rejects.foreign += len(lines)
    log.rows = to_rows(pl.concat(frames, how="diagonal_relaxed"))
    return log
