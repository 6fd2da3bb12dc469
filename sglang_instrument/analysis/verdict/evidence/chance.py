"""Estimate how likely it is that a value, or several, are just drawn from the others."""

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

FEWEST: Final = 40  # with fewer values, their tail cannot be estimated
#: A factor on limits: what reaches them only by the rounding of sums in another order reaches them so, too.
AS_ROUNDED: Final = 1.001
_TAIL: Final = 0.1  # share of them that forms the tail
_FEWEST_OF_A_TAIL: Final = 5
_PRIOR_VALUES: Final = 2
_NEAR: Final = 3.5  # standard errors: what is nearer is no outlier of a few steps by any test here
_FEWEST_OF_A_MEAN: Final = 20  # draws; means of fewer are not distributed normally

Array = np.ndarray[Any, np.dtype[Any]]


class Draws:
    """The values of a run, to tell whether some of them are just drawn from the others."""

    def __init__(self, values: pl.Series) -> None:
        self._values: Array = values.sort().to_numpy()

    def chance_to_reach(self, reached: float, excluded: Array | None = None, fewest: int = FEWEST) -> float:
        """Return the probability that one more value, drawn as those of others, is at least as large.

        Args:
            reached: The value in question.
            excluded: Values that do not count, as those of its owner, in ascending order; None if all do.
            fewest: The number of others needed to extrapolate beyond the largest of them.
        """
        excluded = self._values[:0] if excluded is None else excluded
        others = len(self._values) - len(excluded)
        above = _reaching(self._values, reached) - _reaching(excluded, reached)
        share = (above + 1) / (others + 1)
        if above == 0 and others >= fewest:
            share *= chance_beyond(self._longest(excluded, _length_of_tail(others) + 1), reached)
        return share

    def _longest(self, excluded: Array, number: int) -> list[float]:
        """Return the longest values but the owner's, the longest first."""
        longest = self._values[-(number + len(excluded)) :]
        excluded = excluded[excluded >= longest[0]]
        repeated = np.arange(len(excluded)) - np.searchsorted(excluded, excluded)
        counted: list[float] = np.delete(longest, np.searchsorted(longest, excluded) + repeated).tolist()
        return counted[: -number - 1 : -1]


def _reaching(values: Array, reached: float) -> int:
    return len(values) - int(np.searchsorted(values, reached))


def chance_beyond(longest: list[float], reached: float) -> float:
    """Return the probability that a value beyond the longest one reaches this far.

    Computed from a Pareto distribution with the tail's exponent (Hill's estimate). Its tail is heavier than
    that of most times, so the probability is rather too large.

    Args:
        longest: The tail, the longest first, and the value after it.
        reached: The value beyond the longest.
    """
    falls = sum(math.log(value / longest[-1]) for value in longest[:-1]) / (len(longest) - 1)
    return 0.0 if falls == 0 else math.exp(-math.log(reached / longest[0]) / falls)


def chance_of_one_more(reached: Array, known: Array, least_spread: float) -> Array:
    """Return how likely it is that one more draw of what drew the known values is as large.

    Student's distribution. A few values may lie close to each other by chance, so that the least spread
    counts as two values more.

    Args:
        reached: The values in question.
        known: The others, finite.
        least_spread: The least standard deviation to assume.
    """
    from scipy.special import stdtr  # takes half a second to import: only where something stands out

    count = len(known)
    middle = float(known.mean()) if count else 0.0
    freedom = count - 1 + _PRIOR_VALUES
    variance = (float(((known - middle) ** 2).sum()) + _PRIOR_VALUES * least_spread**2) / freedom
    chances: Array = stdtr(freedom, (middle - reached) / math.sqrt(variance * (1 + 1 / max(1, count))))
    return chances


def chance_of_so_many(number: int, of: int, share: float) -> float:
    """Return the probability that at least `number` of `of` draws reach what a `share` of all reaches.

    The binomial distribution, summed term by term: `scipy.special` takes longer to import than a verdict.
    """
    if number <= 0:
        return 1.0
    if share <= 0.0 or share >= 1.0:
        return float(share > 0.0 and number <= of)
    log_share, log_rest = math.log(share), math.log1p(-share)
    return math.fsum(
        math.exp(_log_choices(of, drawn) + drawn * log_share + (of - drawn) * log_rest)
        for drawn in range(number, of + 1)
    )


def _log_choices(of: int, drawn: int) -> float:
    """Return the logarithm of the number of ways to choose some of all."""
    return math.lgamma(of + 1) - math.lgamma(drawn + 1) - math.lgamma(of - drawn + 1)


def chance_of_higher_ranks(values: pl.Series, others: pl.Series, together: float = 1.0) -> float:
    """Return the probability that values drawn as others rank so high among them (Mann and Whitney).

    Args:
        values: The values in question.
        others: The values that they are compared with.
        together: How many of them count as one draw: `drawn_together`.

    By the normal distribution, with the variance that ties leave and half a rank for continuity:
    `scipy.stats` takes half a second to import.
    """
    ranks = pl.concat([values, others]).cast(pl.Float64).rank("average")
    count, of_others, every = len(values), len(others), len(ranks)
    above = float(ranks.head(count).sum()) - count * (count + 1) / 2
    alike = ranks.value_counts()["count"].cast(pl.Float64)
    ties = float((alike**3 - alike).sum())
    variance = count * of_others / 12 * (every + 1 - ties / (every * (every - 1)))
    if variance <= 0:
        return 1.0
    deviations = (above - count * of_others / 2 - 0.5) / math.sqrt(variance * max(1.0, together))
    return math.erfc(deviations / math.sqrt(2)) / 2


def chances_of_higher_ranks(
    rows: pl.DataFrame, value: str, cell: Sequence[str], within: str, together: float = 1.0
) -> pl.DataFrame:
    """Return for each cell what `chance_of_higher_ranks` says of its values against all others of its kind.

    Ranks and ties are counted once: cell by cell, a run of many cells would be ranked as often.

    Args:
        rows: The values.
        value: Their column.
        cell: Columns of a cell, among them `within`.
        within: The column of the kind: values of other kinds are not compared.
        together: How many of them count as one draw: `drawn_together`.

    Returns:
        The cells in the order of their first rows; count; others: how many values it is compared with;
        times: the ratio of the geometric means; chance.
    """
    values = pl.col(value).cast(pl.Float64)
    ranked = rows.with_columns(rank=values.rank("average").over(within), log=values.log())
    alike = ranked.group_by(within, value).agg(alike=pl.len().cast(pl.Float64))
    ties = alike.group_by(within).agg(ties=(pl.col("alike").pow(3) - pl.col("alike")).sum())
    kinds = ranked.group_by(within).agg(every=pl.len().cast(pl.Float64), all_logs=pl.col("log").sum())
    cells = ranked.group_by(cell, maintain_order=True).agg(
        count=pl.len().cast(pl.Float64), logs=pl.col("log").sum(), ranks=pl.col("rank").sum()
    )
    cells = cells.join(kinds.join(ties, on=within), on=within, how="left", maintain_order="left")
    count, every = pl.col("count"), pl.col("every")
    others = every - count
    variance = count * others / 12 * (every + 1 - pl.col("ties") / (every * (every - 1)))
    above = pl.col("ranks") - count * (count + 1) / 2
    deviations = (above - count * others / 2 - 0.5) / (variance * max(1.0, together)).sqrt()
    times = (pl.col("logs") / count - (pl.col("all_logs") - pl.col("logs")) / others).exp()
    cells = cells.select(
        *cell,
        count=count.cast(pl.Int64),
        others=others.cast(pl.Int64),
        times=pl.when(others > 0).then(times),
        deviations=pl.when(variance > 0).then(deviations),
    )
    chances = [
        1.0 if deviation is None else math.erfc(deviation / math.sqrt(2)) / 2
        for deviation in cells["deviations"].to_list()
    ]
    return cells.drop("deviations").with_columns(chance=pl.Series(chances, dtype=pl.Float64))


def chances_of_higher_logs(
    rows: pl.DataFrame, value: str, cell: Sequence[str], within: str, together: float = 1.0
) -> pl.DataFrame:
    """Return for each cell how likely values drawn as all others have so high a mean logarithm (Student).

    Ranks tell no more than that all values of a cell are above all others: of a few, that is soon reached.

    Args:
        rows: The values, above 0.
        value: Their column.
        cell: As in `chances_of_higher_ranks`.
        within: As there.
        together: As there.

    Returns:
        The cells, and chance.
    """
    log = pl.col(value).cast(pl.Float64).log()
    sums = {"count": pl.len().cast(pl.Float64), "total": log.sum(), "squares": (log**2).sum()}
    cells = rows.group_by(cell, maintain_order=True).agg(**sums)
    count, total, squares = (pl.col(name).sum().over(within) - pl.col(name) for name in sums)
    variance = (squares - total**2 / count) / (count - 1)
    error = (variance * max(1.0, together) * (1 / pl.col("count") + 1 / count)).sqrt()
    reached = (pl.col("total") / pl.col("count") - total / count) / error
    cells = cells.select(*cell, reached=reached, freedom=count / max(1.0, together) - 1)
    may_be = (pl.col("freedom") > 0) & pl.col("reached").is_finite() & (pl.col("reached") > _NEAR)
    if not cells.select(may_be.any()).item():
        return cells.select(*cell, chance=pl.lit(1.0))
    from scipy.special import stdtr  # takes half a second to import: only where something stands out

    chances = pl.Series(stdtr(cells["freedom"].to_numpy(), -cells["reached"].to_numpy()))
    return cells.select(*cell, chance=pl.when(may_be).then(chances).otherwise(1.0))


def chance_of_higher_mean(values: pl.Series, others: pl.Series, together: float = 1.0) -> float:
    """Return the probability that values drawn as others have so much higher a mean (Welch); 1 for a few.

    Ranks hardly tell a step in which half of the values are far higher, and the others as usual.

    Args:
        values: The values in question.
        others: The values that they are compared with.
        together: How many of them count as one draw: `drawn_together`.
    """
    return chance_of_moments(Moments.of(values), Moments.of(others), together)


class Moments(NamedTuple):
    """How many values there are, their mean, and their variance; of none and of one it may be None."""

    number: int
    mean: Any
    variance: Any

    @classmethod
    def of(cls, values: pl.Series) -> "Moments":
        """Return those of some values."""
        numbers = values.cast(pl.Float64)
        return cls(len(numbers), numbers.mean(), numbers.var())

    @classmethod
    def of_sums(cls, number: int, total: float, squares: float) -> "Moments":
        """Return those of at least two values with this sum, and this sum of their squares."""
        return cls(number, total / number, (squares - total * total / number) / (number - 1))


def chance_of_moments(mine: Moments, usual: Moments, together: float = 1.0) -> float:
    """Return `chance_of_higher_mean` of values of which no more is known."""
    if min(mine.number, usual.number) < _FEWEST_OF_A_MEAN * together:
        return 1.0
    error = mine.variance / mine.number + usual.variance / usual.number
    if error <= 0:
        return float(mine.mean <= usual.mean)
    return math.erfc((mine.mean - usual.mean) / math.sqrt(2 * error * max(1.0, together))) / 2


def drawn_together(
    rows: pl.DataFrame, value: str, group: Sequence[str], cell: Sequence[str], part: Sequence[str] = ()
) -> float:
    """Return how many values count as one draw, because those of a group are alike: 1 if they are not.

    The design effect of a sample of clusters, 1 + (m - 1) r: r is the correlation within groups by the
    analysis of variance, m the mean size of a group. Requests of one prompt have replies of similar length.
    What all groups of a cell share, as a step with long replies, makes no group alike.

    Args:
        rows: The values; those without a group, null in any of its columns, do not count.
        value: Their column.
        group: The columns that tell their group; those of the cell are among them.
        cell: The columns that tell what is compared: the groups of one cell are compared with each other.
        part: Columns that split a group, as workers do: what one of them has of it counts as one draw.
    """
    grouped = rows.drop_nulls([value, *group])
    sizes = grouped.group_by(group).agg(pl.len().alias("of"), pl.col(value).mean().alias("mean"))
    groups, every, cells = len(sizes), len(grouped), sizes.select(cell).n_unique()
    if groups <= cells or every <= groups:
        return 1.0
    joined = grouped.join(sizes, on=group)
    middles = grouped.group_by(cell).agg(pl.col(value).mean().alias("middle"))
    within = float(joined.select(((pl.col(value) - pl.col("mean")) ** 2).sum()).item()) / (every - groups)
    off = pl.col("of") * (pl.col("mean") - pl.col("middle")) ** 2
    between = float(sizes.join(middles, on=cell).select(off.sum()).item()) / (groups - cells)
    size = every / groups
    alike = (between - within) / (between + (size - 1) * within) if between + within > 0 else 0.0
    if part:
        size = every / grouped.select(*group, *part).n_unique()
    return 1.0 + (size - 1) * min(1.0, max(0.0, alike))


def tail_of(values: pl.Series) -> list[float]:
    """Return the longest tenth of the values, the longest first, and the value after it."""
    longest: list[float] = values.top_k(_length_of_tail(len(values)) + 1).sort(descending=True).to_list()
    return longest


def _length_of_tail(values: int) -> int:
    return max(_FEWEST_OF_A_TAIL, int(values * _TAIL))
