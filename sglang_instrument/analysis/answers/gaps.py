"""Find plateaus, during which no request of a worker completes, and blocked event loops."""

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.reading.files import Control, File, controls_of
from sglang_instrument.analysis.reading.last_open import place_of, still_blocked
from sglang_instrument.schema import LOOP_BLOCK

_LEAST_SEC: Final = 2.0
_TIMES_THE_USUAL: Final = 10.0
_USUAL: Final = 0.99  # quantile of the gaps
_LEAST_IN_FLIGHT: Final = 5
_OF_WORKER: Final = ["step", "validate", "worker"]
_CHANGE: Final = [*_OF_WORKER, "at_us"]
_BLOCK: Final = {
    "role": pl.String,
    "step": pl.Int64,
    "validate": pl.Boolean,
    "worker": pl.Int64,
    "at_us": pl.Int64,
    "blocked_sec": pl.Float64,
    "still": pl.Boolean,
    "in_span": pl.String,
    "culprit": pl.String,
    "cpu_sec": pl.Float64,
    "thread_cpu_sec": pl.Float64,
}


def plateaus(digest: Digest) -> pl.DataFrame:
    """Return the plateaus, during which no request of a worker completed, the longest first.

    A plateau is a gap between two completions of a worker in a step that is longer than max(2 s, 10 times the
    99th percentile of such gaps in the run), with at least 5 requests in flight throughout. Gaps with fewer
    requests in flight are ignored: the last requests of a heavy tail are always far apart.

    Returns:
        step, validate, worker; from_sec, to_sec: seconds since the worker's first request began;
        stuck_requests: those in flight throughout; requests: all of the worker in the step; from_us, to_us.
    """
    requests = digest.of_workers().requests
    ends = _completions(digest).filter(pl.col("in_flight") >= _LEAST_IN_FLIGHT)
    usual = ends["gap_sec"].quantile(_USUAL, "linear") or 0.0
    counted = requests.group_by(_OF_WORKER).agg(begun_us=pl.col("start_us").min(), requests=pl.len())
    long = ends.filter(pl.col("gap_sec") > max(_LEAST_SEC, _TIMES_THE_USUAL * usual)).join(
        counted, on=_OF_WORKER
    )
    throughout = (pl.col("start_us") <= pl.col("from_us")) & (pl.col("end_us") >= pl.col("to_us"))
    stuck = long.join(requests.select(*_OF_WORKER, "start_us", "end_us"), on=_OF_WORKER).filter(throughout)
    key = [*_OF_WORKER, "begun_us", "requests", "from_us", "to_us"]
    of_plateaus = stuck.group_by(key).agg(stuck_requests=pl.len().cast(pl.Int64))
    of_plateaus = of_plateaus.filter(pl.col("stuck_requests") >= _LEAST_IN_FLIGHT)
    return (
        of_plateaus.with_columns(
            from_sec=(pl.col("from_us") - pl.col("begun_us")) / 1e6,
            to_sec=(pl.col("to_us") - pl.col("begun_us")) / 1e6,
            requests=pl.col("requests").cast(pl.Int64),
        )
        .sort(pl.col("to_us") - pl.col("from_us"), descending=True)
        .select(*_OF_WORKER, "from_sec", "to_sec", "stuck_requests", "requests", "from_us", "to_us")
    )


def standstill(digest: Digest, plateau: dict[str, Any]) -> dict[str, Any]:
    """Return what the requests in flight throughout a plateau were doing.

    Args:
        digest: Of the run.
        plateau: A row of `plateaus`.

    Returns:
        turn: the turn (0-based) in which most of them were, or None; in_turn: how many; event: the longest
        part of most of these turns, or None; since_sec: the plateau's start, or, if later, when the last of
        them entered its turn; slowdown: the median of their engine seconds per token over that of all
        turns of the run, or None.
    """
    here = pl.all_horizontal(pl.col(name) == plateau[name] for name in _OF_WORKER)
    middle = (plateau["from_us"] + plateau["to_us"]) // 2
    turns = digest.of_workers().turns.filter(
        here & (pl.col("start_us") <= middle) & (pl.col("end_us") >= middle)
    )
    if turns.is_empty():
        return {"turn": None, "in_turn": 0, "event": None, "since_sec": plateau["from_sec"], "slowdown": None}
    turn, in_turn = turns["turn"].value_counts(sort=True).row(0)
    event = turns.filter(turn=turn)["event"].value_counts(sort=True)["event"].first()
    latest: Any = turns["start_us"].max()
    since = plateau["from_sec"] + max(0, latest - plateau["from_us"]) / 1e6
    usual, theirs = _pace(digest.of_workers().turns), _pace(turns)
    slowdown = theirs / usual if usual and theirs else None
    return {"turn": turn, "in_turn": in_turn, "event": event, "since_sec": since, "slowdown": slowdown}


def _pace(turns: pl.DataFrame) -> float | None:
    """Return the median of the engine seconds per token."""
    known = turns.filter((pl.col("response_tokens") > 0) & (pl.col("engine_sec") > 0))
    pace: Any = (known["engine_sec"] / known["response_tokens"]).median()
    return None if pace is None else float(pace)


def concurrency(digest: Digest) -> pl.DataFrame:
    """Return how many requests were in flight: one row per change.

    Returns:
        step, validate, worker; at_sec: since the worker's first request began; in_flight: from then on.
    """
    return _changes(digest).select(
        *_OF_WORKER,
        at_sec=(pl.col("at_us") - pl.col("at_us").min().over(_OF_WORKER)) / 1e6,
        in_flight="in_flight",
    )


def _changes(digest: Digest) -> pl.DataFrame:
    """Return when requests of a worker began or ended, and how many are in flight after each change."""
    requests = digest.of_workers().requests
    changes = pl.concat(
        [
            requests.select(*_OF_WORKER, at_us="start_us", change=pl.lit(1)),
            requests.select(*_OF_WORKER, at_us="end_us", change=pl.lit(-1)),
        ]
    )
    # Ends sort last, so the last change at a time tells whether any request ended then.
    changes = changes.sort(*_OF_WORKER, "at_us", "change", descending=[False] * 4 + [True])
    # The changes of a worker sum to 0, so one running sum serves all workers.
    running = changes.with_columns(in_flight=pl.col("change").cum_sum().cast(pl.Int64))
    is_last = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift(-1)) for name in _CHANGE)
    return running.filter(is_last).select(*_CHANGE, "in_flight", ended=pl.col("change") < 0)


def _completions(digest: Digest) -> pl.DataFrame:
    """Return the gaps between completions, and how many requests were in flight at the beginning of each."""
    ends = _changes(digest).filter("ended")
    is_last = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift(-1)) for name in _OF_WORKER)
    gaps = ends.with_columns(to_us=pl.col("at_us").shift(-1)).filter(~is_last)
    return gaps.select(
        *_OF_WORKER,
        "in_flight",
        "to_us",
        from_us="at_us",
        gap_sec=(pl.col("to_us") - pl.col("at_us")) / 1e6,
    )


def loop_blocks(files: Sequence[File]) -> pl.DataFrame:
    """Return the blocks of event loops, the longest first, in all roles: trainers have event loops, too.

    Returns:
        role, step, validate, worker; at_us: when the block ended, or was last reported; blocked_sec; still:
        whether its end is unknown; in_span: the open span, if known; culprit: the program's innermost sampled
        frame, else the innermost of all, its path shortened to folder and file; cpu_sec: the CPU time of the
        process meanwhile, of all its threads; thread_cpu_sec: of the loop's own.
    """
    rows = [_block(file, block) for file, block in controls_of(files, LOOP_BLOCK)]
    rows += [{**_block(file, block), "still": True} for file, block in still_blocked(files)]
    rows = [row for row in rows if row["role"] is not None]
    return pl.DataFrame(rows, schema=_BLOCK).sort("blocked_sec", "at_us", descending=[True, False])


def _block(file: File, block: Control) -> dict[str, Any]:
    place = file.place
    frame = place_of({"place": block.extra.place, "stack": block.extra.stack})
    return {
        "role": place and place.role,
        "step": place and place.step,
        "validate": place and place.validate,
        "worker": place and place.worker,
        "at_us": block.time_us,
        "blocked_sec": block.duration_sec or block.extra.age_sec or 0.0,
        "still": False,
        "in_span": block.extra.in_span,
        "culprit": None if frame is None else _frame(frame),
        "cpu_sec": block.extra.cpu_sec,
        "thread_cpu_sec": block.extra.thread_cpu_sec,
    }


def _frame(text: str) -> str:
    """Shorten the path in a frame, FILE:LINE FUNCTION, to folder and file."""
    where, space, function = text.partition(" ")
    return "/".join(where.split("/")[-2:]) + space + function
