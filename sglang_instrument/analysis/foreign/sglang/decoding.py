"""Say which time each line "Decode batch" covers, and how many decode steps.

A line reports what the decoder did since the line before: `--decode-log-interval` decode steps (40, unless
the server was told otherwise), each a token for each running request. Its throughput is the tokens of these
steps over the time since the line before, pauses included: `report_decode_stats` in SGLang's
`metrics_reporter.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

import polars as pl

from sglang_instrument.analysis.foreign.records.windows import IDLE_SEC

_EXACT: Final = 8  # times the precision of stamps: of a longer time the tokens are known
_ROUGHLY: Final = 1.25  # of a batch that may have been as large as the larger one of two lines says
_SLOWER: Final = 3.0  # a line with steps so many times as long as those of the next one holds a pause
_REPEATED_SEC: Final = 10.0  # Ray sums up the lines of 5 s (RAY_DEDUP_LOGS_AGG_WINDOW_S)
_LONGEST_SEC: Final = 1e7
_US: Final = 1_000_000
_MOST_STEPS: Final = 1_000_000


@dataclass
class BatchLine:
    """A line of a server, and what it covers.

    Attributes:
        stamp_us: When it was printed.
        precision_us: How exact this is.
        is_decode: Whether it is one of decode; else it is one of prefill.
        running: Requests that run.
        rate: Tokens a second of all of them.
        accepted: Tokens that each decode step adds to a request: 1, or more with speculative decoding.
        is_repeated: Whether Ray left out lines like this one before it.
        busy_us: How long the time before it was spent on decoding; None where this is not known.
        steps: Decode steps in this time.
        total: Tokens of all requests in this time; None where the stamps are too coarse to tell.
    """

    stamp_us: int
    precision_us: int
    is_decode: bool
    running: int
    rate: float
    accepted: float = 1.0
    is_repeated: bool = False
    busy_us: int | None = None
    steps: float = 0.0
    total: float | None = None

    @property
    def tokens(self) -> float:
        """Tokens of each running request."""
        return self.steps * self.accepted


def lines_in(table: pl.DataFrame) -> list[BatchLine]:
    """Return the lines of a worker, in the order of time.

    Args:
        table: `stamp`, `precision_us`, `kind`, `running`, `tokens_per_sec`, `accepted_length`, `repeated`.
    """
    rows = table.select(
        pl.col("stamp"),
        pl.col("precision_us"),
        pl.col("kind") == "Decode",
        pl.col("running").cast(pl.Int64, strict=False).fill_null(-1),
        pl.col("tokens_per_sec").fill_null(0.0),
        pl.col("accepted_length").fill_null(1.0).clip(lower_bound=1.0),
        pl.col("repeated") > 0,
    )
    return [BatchLine(*row) for row in rows.iter_rows()]


def interval_of(lines: Sequence[BatchLine]) -> float | None:
    """Return the decode steps from line to line; None where no two lines tell.

    The tokens of a line are its throughput times the time since the line before, pauses included. The stamps
    show whole seconds, so of short times only the mean is known.
    """
    decodes = [line for line in lines if line.is_decode and line.running > 0 and line.rate > 0]
    pairs = list(pairwise(decodes))
    short = [_steps(*pair) for pair in pairs if _gap_us(*pair) <= IDLE_SEC * _US]
    if not pairs:
        return None
    if len(short) * 2 >= len(pairs):
        return _bounded(sum(short) / len(short))
    return _bounded(median(_steps(*pair) for pair in pairs if _gap_us(*pair) > IDLE_SEC * _US))


def _gap_us(before: BatchLine, line: BatchLine) -> int:
    return max(0, line.stamp_us - before.stamp_us)


def _steps(before: BatchLine, line: BatchLine) -> float:
    """Return how many decode steps lie between two lines, with the mean of their requests."""
    running = (before.running + line.running) / 2
    return _gap_us(before, line) / _US * line.rate / running / line.accepted


def _bounded(interval: float) -> float:
    return min(max(round(interval), 1), _MOST_STEPS)


def cover(lines: Sequence[BatchLine], interval: float | None) -> None:
    """Set `busy_us` and `steps` of the lines of a worker.

    Args:
        lines: The lines, in the order of time.
        interval: The decode steps from line to line; None if nothing tells it, and nothing is set for decode.

    A pause lies before the first prefill into an empty batch. In a log without lines of prefill it lies where
    a line's decode steps took several times as long as the next line's, or where so many steps at its
    throughput are fewer tokens than those of the time since the line before.
    """
    decodes = [line for line in lines if line.is_decode]
    if not decodes:
        _cover_prefill(lines)
    if interval is None:
        return
    has_prefill = len(decodes) < len(lines)
    before: BatchLine | None = None  # the last line of decode
    prefill_us: int | None = None  # the last line of prefill
    began_us: int | None = None  # when prefill into an empty batch ended a pause
    following = dict(zip(map(id, decodes), decodes[1:], strict=False))
    for line in lines:
        if not line.is_decode:
            is_apart = prefill_us is None or line.stamp_us - prefill_us > IDLE_SEC * _US
            if line.running == 0 and (began_us is None or is_apart):
                began_us = line.stamp_us
            prefill_us = line.stamp_us
            continue
        _cover(line, before, following.get(id(line)), began_us, interval, has_prefill)
        before, began_us = line, None


def _cover(
    line: BatchLine,
    before: BatchLine | None,
    after: BatchLine | None,
    began_us: int | None,
    interval: float,
    has_prefill: bool,
) -> None:
    told_us = _told_us(line, interval)
    gap_us = None if before is None else _gap_us(before, line)
    if told_us is None or (gap_us is None and began_us is None):
        return
    usual_us = None if after is None else _told_us(after, interval)
    if began_us is not None and (gap_us is None or line.stamp_us - began_us + 2 * line.precision_us < gap_us):
        line.busy_us = min(line.stamp_us - began_us, told_us)
        # The interval counts on over a pause: the first steps of this line came before it.
        share = 1.0 if usual_us is None else min(1.0, line.busy_us / max(1, usual_us))
        line.steps = interval * share
        return
    assert before is not None and gap_us is not None  # noqa: S101, PT018 - else the line is the first one
    line.busy_us, line.steps = min(told_us, gap_us + line.precision_us), interval
    batch = line.rate * gap_us / _US / interval / line.accepted
    if line.is_repeated and gap_us <= _REPEATED_SEC * _US:
        line.busy_us, line.steps = gap_us, interval * gap_us / max(1, told_us)
    elif gap_us >= _EXACT * line.precision_us and (
        has_prefill or batch <= _ROUGHLY * max(before.running, line.running)
    ):
        line.busy_us, line.total = gap_us, line.rate * gap_us / _US
        is_slow = usual_us is not None and told_us > _SLOWER * usual_us
        if is_slow and usual_us is not None and not has_prefill and gap_us - usual_us > IDLE_SEC * _US:
            line.busy_us, line.total = usual_us, None


def _cover_prefill(lines: Sequence[BatchLine]) -> None:
    """Set `busy_us` of the lines of a server that only prefills: the time since the line before."""
    for before, line in pairwise(lines):
        gap_us = line.stamp_us - before.stamp_us
        line.busy_us = gap_us if 0 < gap_us <= IDLE_SEC * _US else None


def _told_us(line: BatchLine, interval: float) -> int | None:
    """Return how long the steps of a line took at its throughput."""
    if line.running <= 0 or line.rate <= 0:
        return None
    return int(min(interval * line.accepted * line.running / line.rate, _LONGEST_SEC) * _US)


def ends_of(lines: Sequence[BatchLine]) -> list[int]:
    """Return when what each line covers ended; all lines have a `busy_us`.

    A stamp may show the whole second only, and durations are exact: lines that follow one another tell where
    in its second each was printed. Where both do not agree, as after a pause, this begins anew.
    """
    ends: list[int] = []
    offsets: list[float] = []  # of the ends of such lines, from when their first began
    low = high = 0.0  # between these it began
    for line in lines:
        stamp, lasted = line.stamp_us, float(line.busy_us or 0)
        offset = (offsets[-1] if offsets else 0.0) + lasted
        latest = stamp + line.precision_us
        if not offsets or max(low, stamp - offset) > min(high, latest - offset):
            ends += _from(low, high, offsets, ends)
            offset, offsets, low, high = lasted, [], stamp - lasted, latest - lasted
        offsets.append(offset)
        low, high = max(low, stamp - offset), min(high, latest - offset)
    return ends + _from(low, high, offsets, ends)


def _from(low: float, high: float, offsets: Sequence[float], before: Sequence[int]) -> list[int]:
    """Return the ends of lines, of which the first began between two times and not before others ended."""
    begun = max((low + high) / 2, before[-1] if before else low)
    return [int(begun + offset) for offset in offsets]
