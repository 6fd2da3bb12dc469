"""Compare open requests with those of earlier steps that were as old: how much longer did these last?"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from sglang_instrument.live.history import Floats, Ints

_MOST_COMPARED: Final = 512  # earlier requests for one open request
_TURN_WIDTH: Final = 0.7  # how far turns may be apart to be alike
_AGE_WIDTH: Final = 0.5  # the same of the logarithm of the time in the turn
_SOON: Final = 0.05  # added to a time in a turn, so that short ones are alike
_UNLIKE: Final = 0.02  # weight of an earlier request that was in another state
_TAIL: Final = 0.1  # share of the longest, from which longer ones still are extrapolated
_LEAST: Final = 1e-12


@dataclass(frozen=True)
class Pool:
    """Earlier requests, by their durations; all times are in one unit, in which a usual request takes 1.

    Attributes:
        lasted: Their durations, ascending.
        turns: When each of their turns began, after the request did; without columns, not known.
    """

    lasted: Floats
    turns: Floats

    @classmethod
    def of(cls, lasted: Floats, turns: Floats) -> "Pool":
        """Return a pool of these requests."""
        order = np.argsort(lasted)
        return cls(lasted[order], turns[order])

    def longer_than(self, age: float) -> "tuple[Pool, int]":
        """Return those that lasted longer, a sample of them if they are many, and their number."""
        first = int(np.searchsorted(self.lasted, age, side="right"))
        count = len(self.lasted) - first
        chosen = first + np.arange(count)
        if count > _MOST_COMPARED:
            chosen = first + np.linspace(0, count - 1, _MOST_COMPARED).astype(np.int64)
        return Pool(self.lasted[chosen], self.turns[chosen]), count

    def log_chances(self, age: float, turn: Ints, in_turn: Floats, grid: Floats) -> Floats:
        """Return the logarithm of the chance that requests of this age end within each time of the grid.

        Args:
            age: How old they are.
            turn: The turn of each; -1 where it is not known.
            in_turn: How long each has been in it.
            grid: Ascending times.
        """
        alike, count = self.longer_than(age)
        left = alike.lasted - age
        overall = self._overall(left, count, grid)
        if not count:
            return np.log(np.maximum(np.broadcast_to(overall, (len(turn), len(grid))), _LEAST))
        weights = alike.likeness(age, turn, in_turn)
        sums = np.cumsum(weights, axis=1)
        at = np.searchsorted(left, grid, side="right")
        own = np.concatenate([np.zeros((len(turn), 1)), sums], axis=1)[:, at] / sums[:, -1:]
        known = sums[:, -1] ** 2 / (weights**2).sum(axis=1) * count / len(left)
        share = (known / (known + 1))[:, None]
        return np.log(np.maximum(share * own + (1 - share) * overall, _LEAST))

    def likeness(self, age: float, turn: Ints, in_turn: Floats) -> Floats:
        """Return a weight for each open request and each of the pool, by their states at this age."""
        if not self.turns.shape[1]:
            return np.ones((len(turn), len(self.lasted)))
        began = self.turns <= age
        own_turn = np.maximum(began.sum(axis=1) - 1, 0)
        own_in = age - self.turns[np.arange(len(own_turn)), own_turn]
        apart = (turn[:, None] - own_turn[None, :]) / _TURN_WIDTH
        logs = np.log((in_turn[:, None] + _SOON) / (np.maximum(own_in, 0.0)[None, :] + _SOON)) / _AGE_WIDTH
        weights = _UNLIKE + np.exp(-0.5 * (apart**2 + logs**2))
        weights[turn < 0] = 1.0
        return weights

    def _overall(self, left: Floats, count: int, grid: Floats) -> Floats:
        """Return the chances of any request of the age; one in `count` + 1 lasts longer than all before."""
        if not count:
            return 1 - np.exp(-grid / _excess(self.lasted))
        ended = np.searchsorted(left, grid, side="right") / len(left)
        beyond = 1 - np.exp(-np.maximum(grid - left[-1], 0.0) / _excess(left))
        return (count * ended + beyond) / (count + 1)


def _excess(ascending: Floats) -> float:
    """Return by how much the longest exceed the shortest of them, in the mean: the scale of the tail."""
    tail = ascending[-max(3, int(len(ascending) * _TAIL)) :]
    return max(float((tail - tail[0]).mean()), 0.05 * float(ascending[-1]), 1e-3)
