"""Find work that took far longer than usual: of all requests of a worker in a step, or of a single one.

The run itself shows what is usual. Chance is ruled out first: a median of few requests varies widely, and
where waits have a heavy tail, some wait is always far longer than the others.
"""

import math
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.run.digest import Digest

FEWEST: Final = 8  # with fewer steps of workers, their usual spread cannot be estimated
_FEWEST_AT_ALL: Final = 4
SPREADS: Final = 8.0  # robust standard deviations from the median
TIMES: Final = 1.25  # times the median, and times the other workers in the same step
_TIMES_OF_FEW: Final = 2.0  # times the next slowest, where there are too few to estimate a spread
LEAST_SPREAD: Final = 0.02  # lower bound of the estimated spread of the logarithm
_MAD: Final = 1.4826  # a normal distribution's standard deviation, in median absolute deviations
_CHANCE: Final = 1e-3  # largest allowed probability that random requests make any worker look this slow
_OF_WORKER: Final = ["step", "validate", "worker"]

_FEWEST_OF_A_TAIL: Final = 40  # with fewer pieces of work, their tail cannot be estimated
_TAIL: Final = 0.1  # share of them that forms the tail
_CHANCE_OF_A_SINGLE: Final = (
    (4.0, 1e-4),
    (50.0, 3e-3),
)  # (times the next longest, largest allowed probability)


def rates(digest: Digest, kind: str) -> pl.DataFrame:
    """Return one row per request with this kind of work: its `rate` and the seconds `spent` on it.

    The rate is in seconds per token for the engine, per turn for tools, per request for rewards and
    interactions.
    """
    spent = pl.col(f"{kind}_sec")
    per = {"engine": pl.col("response_tokens"), "tool": pl.col("turns")}.get(kind, pl.lit(1))
    known = digest.requests.filter((spent > 0) & (per > 0))
    return known.select(*_OF_WORKER, rate=spent / per, spent=spent)


def slow_groups(rates: pl.DataFrame) -> pl.DataFrame:
    """Return the steps of workers whose requests were far slower than those of all others.

    Args:
        rates: One row per request, for one kind of work, as `rates` returns them.

    Returns:
        step, validate, worker; rate: the median of its requests; requests; spent_sec, longest_sec: median and
        maximum of the seconds spent; times: the rate over the median of all rates.
    """
    groups = rates.group_by(_OF_WORKER).agg(
        rate=pl.col("rate").median(),
        reached=pl.col("rate").quantile(0.5, "lower"),
        requests=pl.len(),
        spent_sec=pl.col("spent").median(),
        longest_sec=pl.col("spent").max(),
    )
    groups = groups.sort("validate", "step", "worker").with_columns(
        times=pl.col("rate") / pl.col("rate").median()
    )
    found = _above_peers(_far_above(groups), groups)
    chances = [_chance(rates, row) for row in found.iter_rows(named=True)]
    found = found.filter(pl.Series(chances, dtype=pl.Float64) * len(groups) < _CHANCE)
    return found.drop("reached")


def _far_above(groups: pl.DataFrame) -> pl.DataFrame:
    if len(groups) < _FEWEST_AT_ALL:
        return groups.clear()
    if len(groups) < FEWEST:
        highest = groups.sort("rate", descending=True)
        return highest.head(1).filter(pl.col("rate") > _TIMES_OF_FEW * highest["rate"][1])
    logs = groups["times"].log()
    spread: Any = logs.abs().median()
    far = logs > SPREADS * max(spread * _MAD, LEAST_SPREAD)
    return groups.filter(far & (groups["times"] > TIMES))


def _above_peers(found: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """Drop steps that were slow for all workers alike: then no single worker is at fault."""
    peers = groups.select("step", "validate", peer="worker", of_peer="rate")
    others = found.join(peers, on=["step", "validate"]).filter(pl.col("worker") != pl.col("peer"))
    usual = others.group_by(_OF_WORKER).agg(of_peers=pl.col("of_peer").median())
    compared = found.join(usual, on=_OF_WORKER, how="left", maintain_order="left")
    alone = pl.col("of_peers").is_null()
    return compared.filter(alone | (pl.col("rate") > TIMES * pl.col("of_peers"))).drop("of_peers")


def _chance(rates: pl.DataFrame, row: dict[str, Any]) -> float:
    """Return the probability that most of a worker's requests, drawn from all others, reach its rate."""
    own = pl.all_horizontal(pl.col(name) == row[name] for name in _OF_WORKER)
    others = rates.filter(~own)["rate"]
    requests, share = row["requests"], chance_to_reach(others, row["reached"])
    chance: float = sum(
        math.comb(requests, number) * share**number * (1 - share) ** (requests - number)
        for number in range(requests // 2 + 1, requests + 1)
    )
    return chance


def chance_to_reach(others: pl.Series, reached: float, fewest: int = _FEWEST_OF_A_TAIL) -> float:
    """Return the probability that one more value from the distribution of the others is at least as large.

    Args:
        others: All values but the one in question.
        reached: The value in question.
        fewest: The number of others needed to extrapolate beyond the largest of them.
    """
    above = int((others >= reached).sum())
    share = (above + 1) / (len(others) + 1)
    if above == 0 and len(others) >= fewest:
        longest = others.top_k(_tail(len(others)) + 1).sort(descending=True).to_list()
        share *= _chance_beyond(longest, reached)
    return share


def _tail(pieces: int) -> int:
    """Return how many of these pieces of work form the tail."""
    return max(5, int(pieces * _TAIL))


def _chance_beyond(longest: list[float], reached: float) -> float:
    """Return the probability that a value beyond the longest one reaches this far.

    Computed from a Pareto distribution with the tail's exponent (Hill's estimate).

    Args:
        longest: The tail, the longest first, and the value after it.
        reached: The value beyond the longest.
    """
    falls = sum(math.log(one / longest[-1]) for one in longest[:-1]) / (len(longest) - 1)
    return 0.0 if falls == 0 else math.exp(-math.log(reached / longest[0]) / falls)


def slow_single(pieces: pl.DataFrame) -> dict[str, Any] | None:
    """Return the one piece of work that took far longer than any other, or None.

    Args:
        pieces: One row per piece of work of one kind, with the seconds `spent` on it.

    Returns:
        Its row; next_sec: the longest of all others; times: spent over next_sec. The probability of such a
        ratio comes from a Pareto distribution fitted to the longest tenth of the others (Hill's estimate).
    """
    if len(pieces) < _FEWEST_OF_A_TAIL:
        return None
    longest = pieces.top_k(_tail(len(pieces)) + 2, by="spent").sort("spent", descending=True)
    spent = longest["spent"].to_list()
    times = spent[0] / spent[1]
    chance = _chance_beyond(spent[1:], spent[0])
    if not any(times >= least and chance < allowed for least, allowed in _CHANCE_OF_A_SINGLE):
        return None
    return {**longest.row(0, named=True), "next_sec": spent[1], "times": times}
