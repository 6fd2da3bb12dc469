"""How fast a machine works at each time: work takes longer while the machine is slow."""

from bisect import bisect_right
from random import Random
from typing import Final

from sglang_instrument.testing.world.serving.clock import FOREVER

WINDOW_SEC: Final = 4.0  # the speed of a machine wanders from window to window


class Pace:
    """The speed of a machine: `slowness` times the usual seconds, jitter by windows, and slow spells.

    A spell is (begin, end, factor) in seconds of the world; a factor of infinity is a machine that stands.
    """

    def __init__(self, slowness: float = 1.0, jitter: float = 0.0, seed: str = "") -> None:
        self.slowness = slowness
        self.spells: list[tuple[float, float, float]] = []
        self._jitter, self._random = jitter, Random(f"{seed}/pace")
        self._windows: list[float] = []
        self._edges: list[float] = []

    def add_spell(self, begin: float, end: float, factor: float) -> None:
        """Make the machine slower from a time on, until another."""
        self.spells.append((begin, end, factor))
        self._edges = sorted({edge for spell in self.spells for edge in spell[:2] if edge < FOREVER})

    def cut(self, time_sec: float) -> None:
        """End what is slow, at a time."""
        self.spells = [(begin, min(end, time_sec), factor) for begin, end, factor in self.spells]
        self._edges = sorted({edge for spell in self.spells for edge in spell[:2] if edge < FOREVER})

    def factor_at(self, time_sec: float) -> float:
        """Return how many times the usual seconds work takes."""
        factor = self.slowness
        for begin, end, slow in self.spells:
            if begin <= time_sec < end:
                factor *= slow
        return factor * self._wander(time_sec) if self._jitter else factor

    def end_of(self, begin: float, work_sec: float) -> float:
        """Return when work ends that begins at a time and takes so many seconds at the usual speed."""
        now = begin
        while True:
            factor, change = self.factor_at(now), self._next_change(now)
            if factor < FOREVER and work_sec * factor <= change - now:
                return now + work_sec * factor
            if factor < FOREVER:
                work_sec -= (change - now) / factor
            now = change

    def work_in(self, begin: float, end: float) -> float:
        """Return how many seconds of work, at the usual speed, are done between two times."""
        done, now = 0.0, begin
        while now < end:
            change = min(self._next_change(now), end)
            factor = self.factor_at(now)
            done += (change - now) / factor if factor < FOREVER else 0.0
            now = change
        return done

    def _next_change(self, time_sec: float) -> float:
        place = bisect_right(self._edges, time_sec)
        edge = self._edges[place] if place < len(self._edges) else FOREVER
        if not self._jitter:
            return edge
        return min(edge, (time_sec // WINDOW_SEC + 1) * WINDOW_SEC)

    def _wander(self, time_sec: float) -> float:
        window = int(time_sec // WINDOW_SEC)
        while len(self._windows) <= window:
            self._windows.append(self._random.lognormvariate(0.0, self._jitter))
        return self._windows[window]
