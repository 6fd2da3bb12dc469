"""Find the limits that a run meets: many calls that end at one time, token, turn or retry, or run at once."""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.advice.evidence.cliffs import cliffs_in, count_cliff
from sglang_instrument.analysis.answers.routing.gauges import gauge_table
from sglang_instrument.analysis.answers.steps import STEP
from sglang_instrument.analysis.changes.replaying.pools import PooledCall, PooledCalls
from sglang_instrument.analysis.ledger.loop_of_run import loop_of

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_Row = dict[str, Any]
_LATE: Final = 1.5  # times the median of all other calls
_MOST_ABOVE: Final = 0.1  # of the calls at a limit of time: more that last longer are no limit's
_FEWEST: Final = 5  # values with the largest count
_DEVIATIONS: Final = 2.5  # above what the counts before let expect
_CUT: Final = 0.5  # of the responses at a number of tokens: so many say that they were cut
_FEWEST_SAMPLES: Final = 10  # seconds in which requests waited
_NEARLY: Final = 0.95  # of the most that ever ran
_STANDS: Final = 0.8  # of those, in which as many ran
_SCHEMA: Final[dict[str, Any]] = {
    "of": pl.String,
    "kind": pl.String,
    "value": pl.Float64,
    "width": pl.Float64,
    "at_limit": pl.Int64,
    "of_all": pl.Int64,
    "above": pl.Int64,
    "steps": pl.Int64,
    "request_id": pl.String,
    "sentence": pl.String,
}


def limit_table(run: "Run") -> pl.DataFrame:
    """Return the limits that calls of training steps meet, those that most calls meet first.

    Args:
        run: The run.

    Returns:
        of: what meets it, such as "calls of tool search"; kind: time, tokens, turns, retries or concurrency;
        value: in seconds, tokens, turns, requests; width: by how much values differ from it; at_limit: how
        many end there; of_all: of how many; above: how many go beyond; steps: in how many steps; request_id:
        one of them; sentence: the limit in words. Of a scheduler's concurrency, seconds are counted.
    """
    digest = loop_of(run).lanes.paths.of_workers.filter(~pl.col("validate"))
    rows = [
        *_of_calls(PooledCalls(run)),
        *_of_tokens(digest.requests),
        *_of_counts(digest.requests),
        *_of_schedulers(gauge_table(run)),
    ]
    return pl.DataFrame(rows, schema=_SCHEMA).sort("at_limit", descending=True, maintain_order=True)


def _of_calls(pools: PooledCalls) -> Iterator[_Row]:
    for name, calls in pools.by_name.items():
        yield from _of_times(_named(name), calls)
    for pool in pools.pools:
        what = _named(pool.name)
        calls = pools.by_name[pool.name]
        yield {
            "of": what,
            "kind": "concurrency",
            "value": float(pool.places),
            "width": 0.0,
            "at_limit": pool.calls,
            "of_all": pool.calls,
            "above": 0,
            "steps": len({call.step for call in calls}),
            "request_id": calls[0].request_id,
            "sentence": (
                f"{what}: up to {pool.most:,} are made at once, and about {pool.places:,} run; the others "
                f"wait, {100 * pool.waited_share:.0f} % of their time: a limit of concurrency"
            ),
        }


def _of_times(what: str, calls: Sequence[PooledCall]) -> Iterator[_Row]:
    seconds = [call.end - call.begin for call in calls]
    for cliff in cliffs_in(seconds):
        others = [sec for sec in seconds if not cliff.low <= sec <= cliff.high]
        if not others or cliff.value < _LATE * median(others) or cliff.above > _MOST_ABOVE * cliff.calls:
            continue
        ended = [call for call, sec in zip(calls, seconds, strict=True) if cliff.low <= sec <= cliff.high]
        yield {
            "of": what,
            "kind": "time",
            "value": cliff.value,
            "width": max(cliff.high - cliff.value, cliff.value - cliff.low),
            "at_limit": cliff.calls,
            "of_all": len(calls),
            "above": cliff.above,
            "steps": len({call.step for call in ended}),
            "request_id": ended[0].request_id,
            "sentence": (
                f"{cliff.calls:,} of {len(calls):,} {what} ended at {cliff.words('s')}, where half of the "
                f"others took at most {median(others):.3g} s: a limit, not slowness"
            ),
        }


def _of_tokens(requests: pl.DataFrame) -> Iterator[_Row]:
    known = requests.drop_nulls("response_tokens")
    tokens: list[int] = known["response_tokens"].to_list()
    cliff = count_cliff(tokens)
    if not tokens or (cliff is None and not _are_cut(known)):
        return
    most = max(tokens)
    ended = known.filter(response_tokens=most)
    yield _counted(
        "responses", "tokens", most, ended, len(known), f"end at {most:,} tokens, the most that any has"
    )


def _are_cut(known: pl.DataFrame) -> bool:
    """Return whether most of the longest responses ended because of their length, and are several."""
    reasons = known.filter(pl.col("response_tokens") == pl.col("response_tokens").max())["finish_reason"]
    by_length = sum(reason == "length" for reason in reasons)
    return len(reasons) > 1 and by_length >= _CUT * len(reasons)


def _of_counts(requests: pl.DataFrame) -> Iterator[_Row]:
    turns: list[int] = requests["turns"].drop_nulls().to_list()
    if (most := _last_count(turns)) is not None:
        ended = requests.filter(turns=most)
        yield _counted(
            "requests", "turns", most, ended, len(turns), f"end after turn {most}, the last that any has"
        )
    of_ids = requests.group_by(*STEP, "worker", "request_id").agg(retries=pl.col("attempt").max())
    retried = of_ids.filter(pl.col("retries") > 0)
    if (most := _last_count(retried["retries"].to_list())) is not None:
        ended = retried.filter(retries=most)
        words = f"end after {most} retr{'y' if most == 1 else 'ies'}, the most that any has"
        yield _counted("retried requests", "retries", most, ended, len(retried), words)


def _last_count(counts: Sequence[int]) -> int | None:
    """Return the largest count, if clearly more values have it than the two before let expect; else None.

    Without a limit, each further turn or retry is rarer than the one before, by about the same factor. A
    count that most values have is no limit: they may all be made so.
    """
    tally = Counter(counts)
    most = max(tally, default=0)
    last, before, second = tally[most], tally[most - 1], tally[most - 2]
    falls = min(1.0, before / second) if second else 1.0
    expected = before * falls
    deviation = (last + expected**2 * (4 / max(before, 1) + 1 / max(second, 1))) ** 0.5
    is_limit = most > 1 and last >= _FEWEST and last > expected + _DEVIATIONS * deviation
    return most if is_limit and last <= _CUT * len(counts) else None


def _counted(what: str, kind: str, value: int, ended: pl.DataFrame, of_all: int, words: str) -> _Row:
    return {
        "of": what,
        "kind": kind,
        "value": float(value),
        "width": 0.0,
        "at_limit": len(ended),
        "of_all": of_all,
        "above": 0,
        "steps": ended["step"].n_unique(),
        "request_id": ended["request_id"][0],
        "sentence": f"{len(ended):,} of {of_all:,} {what} {words}: a limit",
    }


def _of_schedulers(gauges: pl.DataFrame) -> Iterator[_Row]:
    """Yield the schedulers on which as many requests run whenever others wait, and never more."""
    most = dict(gauges.group_by("scheduler").agg(pl.col("running").max()).iter_rows())
    waiting = gauges.filter(pl.col("waiting") > 0).drop_nulls("running")
    for (scheduler,), seconds in waiting.group_by("scheduler", maintain_order=True):
        running = seconds["running"]
        usual: Any = running.mode().max()
        standing = int((running == usual).sum())
        is_most = usual >= _NEARLY * most[scheduler]
        if not is_most or len(seconds) < _FEWEST_SAMPLES or standing < _STANDS * len(seconds):
            continue
        yield {
            "of": f"requests on {scheduler}",
            "kind": "concurrency",
            "value": float(usual),
            "width": 0.0,
            "at_limit": standing,
            "of_all": len(seconds),
            "above": int((running > usual).sum()),
            "steps": None,
            "request_id": None,
            "sentence": (
                f"{scheduler}: {usual:,} requests run in {standing:,} of the {len(seconds):,} seconds in "
                "which others wait: a limit of running requests"
            ),
        }


def _named(name: str) -> str:
    """Return "calls of tool search", "tool calls" or "reward calls"."""
    event, _, tool = name.partition(" ")
    if tool:
        return f"calls of tool {tool}"
    return "reward calls" if event == "reward_calculation" else "tool calls"
