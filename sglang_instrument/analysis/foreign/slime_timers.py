"""Read what slime and Miles print of their timers, where no server's lines stand beside them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from sglang_instrument.analysis.foreign.records.rows import ForeignLog, to_rows
from sglang_instrument.analysis.foreign.sglang.log_marks import holds, lines_of
from sglang_instrument.analysis.foreign.sglang.timer_lines import MARKS, PATTERN, timers_in, trainer_spans

NAME: Final = "what slime prints of its timers"
FILES: Final = 'the trainer\'s output, with lines "Timer train_wait end (elapsed: 11.3s)"'
_CANNOT_SHOW: Final = [
    "requests, turns, tools, workers and the engine: only how long each part of a step took",
    "what ran before the first timer, and between timers",
]
_MISREAD: Final = "{count:,} lines of timers without a time"
_TIMER: Final = MARKS[0]
_TEXTS: Final = (".log", ".txt", ".out", ".err", ".gz", ".zst")


def claims(path: Path, head: bytes) -> bool:
    """Return whether a file has such lines, near its begin or later."""
    if head.startswith(b"{") or b"\0" in head:
        return False
    return _TIMER in head or (path.suffix in _TEXTS and holds(path, [_TIMER]))


def read(paths: Sequence[Path]) -> ForeignLog:
    """Return a span for each timer, and one for each step."""
    log = ForeignLog(pl.DataFrame(), [*paths], list(_CANNOT_SHOW))
    changed_us = {number: path.stat().st_mtime_ns // 1000 for number, path in enumerate(paths)}
    every = [lines_of(path, number, MARKS, log.unreadable) for number, path in enumerate(paths)]
    lines = pl.concat(every).filter(pl.col("line").str.contains(PATTERN))
    timers = timers_in(lines, changed_us)
    count = int(lines["line"].str.contains(_TIMER.decode(), literal=True).sum()) - len(timers)
    if count:
        log.misread.append(_MISREAD.format(count=count))
        log.rejects.foreign += count
    log.rows = to_rows(trainer_spans(timers))
    return log
