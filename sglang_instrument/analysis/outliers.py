"""Find work that took far longer than usual: of all requests of a worker in a step, or of a single one.

What is usual is learnt from the run itself, and chance is given its due: a median of few requests strays
far, and where waits have a heavy tail some wait is always the longest.
"""

import math
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.digest import Digest

FEWEST: Final = 8  # steps of workers, below which nobody knows how they usually differ
_FEWEST_AT_ALL: Final = 4
SPREADS: Final = 8.0  # robust standard deviations from the median
TIMES: Final = 1.25  # and so many times the median, and the other workers in the same step
_TIMES_OF_FEW: Final = 2.0  # times the next, where there are too few to know more
LEAST_SPREAD: Final = 0.02  # of a logarithm: what nobody would call a difference
_MAD: Final = 1.4826  # a normal distribution's standard deviation, in median absolute deviations
_CHANCE: Final = 1e-3  # how probable it may be that requests drawn by lot make anybody look so slow
_OF_WORKER: Final = ["step", "validate", "worker"]

_FEWEST_SINGLES: Final = 40  # pieces of work, below which nobody knows their tail
_TAIL: Final = 0.1  # of them are their tail
_TIMES_THE_NEXT: Final = 4.0
_CHANCE_OF_A_SINGLE: Final = 1e-4


def rates(digest: Digest, kind: str) -> pl.DataFrame:
    """Return a row a request that had this kind of work: its `rate` and the seconds `spent` on it.

    The rate is seconds a token for the engine, a turn for tools, a request for rewards and interactions.
    """
    spent = pl.col(f"{kind}_sec")
    per = {"engine": pl.col("response_tokens"), "tool": pl.col("turns")}.get(kind, pl.lit(1))
    known = digest.requests.filter((spent > 0) & (per > 0))
    return known.select(*_OF_WORKER, rate=spent / per, spent=spent)


def slow_groups(rates: pl.DataFrame) -> pl.DataFrame:
    """Return the workers and steps whose requests were far slower than those of all others.

    Args:
        rates: A row a request, of one kind of work, as `rates` has it.

    Returns:
        step, validate, worker; rate: the median of its requests; requests; spent_sec, longest_sec: median and
        maximum of the seconds spent; times: the rate over the median of all rates.
    """
    groups = rates.group_by(_OF_WORKER).agg(
        rate=pl.col("rate").median(),
        requests=pl.len(),
        spent_sec=pl.col("spent").median(),
        longest_sec=pl.col("spent").max(),
    )
    groups = groups.sort("validate", "step", "worker").with_columns(
        times=pl.col("rate") / pl.col("rate").median()
    )
    found = _above_peers(_far_above(groups), groups)
    chances = [_chance(rates["rate"], row["rate"], row["requests"]) for row in found.iter_rows(named=True)]
    return found.filter(pl.Series(chances, dtype=pl.Float64) * len(groups) < _CHANCE)


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
    """Leave out those whose step was slow for all its workers alike: that is no one's fault."""
    peers = groups.select("step", "validate", peer="worker", of_peer="rate")
    others = found.join(peers, on=["step", "validate"]).filter(pl.col("worker") != pl.col("peer"))
    usual = others.group_by(_OF_WORKER).agg(of_peers=pl.col("of_peer").median())
    compared = found.join(usual, on=_OF_WORKER, how="left", maintain_order="left")
    alone = pl.col("of_peers").is_null()
    return compared.filter(alone | (pl.col("rate") > TIMES * pl.col("of_peers"))).drop("of_peers")


def _chance(rates: pl.Series, median: float, requests: int) -> float:
    """Return how probable it is that so many requests, drawn from all others, have such a median."""
    own = (requests + 1) // 2  # at least so many of its own are as high
    others = max(1, len(rates) - requests)
    share = min(1.0, (max(0, int((rates >= median).sum()) - own) + 1) / (others + 1))
    return sum(
        math.comb(requests, number) * share**number * (1 - share) ** (requests - number)
        for number in range(own, requests + 1)
    )


def slow_single(pieces: pl.DataFrame) -> dict[str, Any] | None:
    """Return the one piece of work that took far longer than any other, or None.

    Args:
        pieces: A row a piece of work of one kind, with the seconds `spent` on it.

    Returns:
        Its row; next_sec: the longest of all others; times: how many times that it took. Its chance is that
        of a Pareto distribution, fitted to the tenth of the others that took longest (Hill's estimate), to
        reach so far above the next.
    """
    if len(pieces) < _FEWEST_SINGLES:
        return None
    tail = max(5, int(len(pieces) * _TAIL))
    longest = pieces.top_k(tail + 2, by="spent").sort("spent", descending=True)
    spent = longest["spent"].to_list()
    times = spent[0] / spent[1]
    falls = sum(math.log(sec / spent[-1]) for sec in spent[1:-1]) / tail  # the inverse of the tail's exponent
    if times < _TIMES_THE_NEXT or (falls > 0 and math.log(times) / falls < -math.log(_CHANCE_OF_A_SINGLE)):
        return None
    return {**longest.row(0, named=True), "next_sec": spent[1], "times": times}
