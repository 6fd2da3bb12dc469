"""Compare open requests with those of earlier steps that were as old: how much longer did these last?"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from sglang_instrument.live.forecasting.history import Floats, Ints

_MOST_COMPARED: Final = 512  # earlier requests with which one open request is compared
_TURN_WIDTH: Final = 0.7  # how many turns apart two states may be and still be alike
_AGE_WIDTH: Final = 0.5  # the same of the logarithm of the time in the turn
_SOON: Final = 0.05  # added to a time in a turn, so that short ones are alike
_UNLIKE: Final = 0.02  # weight of an earlier request that was in another state
_TAIL: Final = 0.1  # share of the longest requests from which longer ones are extrapolated
_LEAST_IN_TAIL: Final = 3
_LEAST_HILL: Final = 0.03  # of the mean logarithm by which they exceed the shortest of them
_LEAST: Final = 1e-12


@dataclass(frozen=True)
class Pool:
    """Earlier requests; all times are in one unit, in which a usual request takes 1.

    Attributes:
        lasted: Their durations, ascending.
        turns: When each of their turns began, after the request did; without columns, not known.
        stands_for: How many requests each of them stands for.
    """

    lasted: Floats
    turns: Floats
    stands_for: Floats

    @classmethod
    def of(cls, lasted: Floats, turns: Floats) -> "Pool":
        """Return a pool of these requests."""
        order = np.argsort(lasted)
        return cls(lasted[order], turns[order], np.ones(len(lasted)))

    def longer_than(self, age: float) -> "Pool":
        """Return those that lasted longer; if they are many, a sample that leaves out few of the longest."""
        count = len(self.lasted) - int(np.searchsorted(self.lasted, age, side="right"))
        ranks = np.arange(1, count + 1)
        if count > _MOST_COMPARED:
            ranks = np.unique(np.geomspace(1, count, _MOST_COMPARED).astype(np.int64))
        chosen = len(self.lasted) - ranks[::-1]
        return Pool(self.lasted[chosen], self.turns[chosen], np.diff(ranks, prepend=0)[::-1].astype(float))

    def ended(self, within: Floats) -> Floats:
        """Return how many of them had ended at these ascending ages."""
        sums = np.concatenate([np.zeros(1), np.cumsum(self.stands_for)])
        return np.asarray(sums[np.searchsorted(self.lasted, within, side="right")])

    def log_chances(self, age: float, turn: Ints, in_turn: Floats, grid: Floats) -> Floats:
        """Return the logarithm of the chance that open requests of this age end within each time of the grid.

        Each is compared with the requests of the pool that lasted longer than its age. Those that were in the
        same turn for about as long at this age count most. The fewer alike there are, the more the others
        count, and the more probable is it that the request outlasts them all.

        Args:
            age: How old the requests are.
            turn: The turn of each; -1 where it is not known.
            in_turn: How long each has been in it.
            grid: Ascending times from now.
        """
        older = self.longer_than(age)
        overall = (older.ended(grid + age) + self.beyond(age, grid)) / (older.stands_for.sum() + 1)
        weights = older._likeness(age, turn, in_turn)
        sums = np.pad(np.cumsum(weights * older.stands_for, axis=1), ((0, 0), (1, 0)))
        total = np.maximum(sums[:, -1:], _LEAST)
        ended = sums[:, np.searchsorted(older.lasted, grid + age, side="right")] / total
        squares = np.einsum("ij,ij,j->i", weights, weights, older.stands_for)  # not by BLAS: see product()
        alike = total**2 / np.maximum(squares, _LEAST)[:, None]  # Kish's number
        chances = (alike * ended + overall) / (alike + 1)
        return np.asarray(np.log(np.maximum(chances, _LEAST)))

    def _likeness(self, age: float, turn: Ints, in_turn: Floats) -> Floats:
        """Return a weight for each open request and each of the pool, by their states at this age."""
        if not self.turns.shape[1]:
            return np.ones((len(turn), len(self.lasted)))
        own_turn = np.maximum((self.turns <= age).sum(axis=1) - 1, 0)
        own_in = np.maximum(age - self.turns[np.arange(len(own_turn)), own_turn], 0.0)
        apart = (turn[:, None] - own_turn[None, :]) / _TURN_WIDTH
        logs = (np.log(in_turn + _SOON)[:, None] - np.log(own_in + _SOON)[None, :]) / _AGE_WIDTH
        weights = _UNLIKE + np.exp(-0.5 * (apart**2 + logs**2))
        weights[turn < 0] = 1.0
        return np.asarray(weights)

    def beyond(self, age: float, grid: Floats) -> Floats:
        """Return the chances of a request of this age that outlasts the pool: its tail is Pareto's."""
        longest = max(float(self.lasted[-1]), age)
        return np.asarray(1 - np.maximum((grid + age) / longest, 1.0) ** (-1 / self._hill))

    @cached_property
    def _hill(self) -> float:
        """Hill's estimate of the tail, from the longest: the mean logarithm by which they exceed a limit."""
        tail = np.log(self.lasted[-max(_LEAST_IN_TAIL, int(len(self.lasted) * _TAIL)) :])
        return max(float((tail - tail[0]).mean()), _LEAST_HILL)
