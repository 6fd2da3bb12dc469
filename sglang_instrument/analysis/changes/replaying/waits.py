"""Tell where the requests of a run wait for each other: at which servers, and in which pools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_instrument.analysis.changes.replaying.pools import PooledCalls
from sglang_instrument.analysis.changes.replaying.server_work import ServedCalls, served_calls

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run


class StationWaits(NamedTuple):
    """Where requests wait for each other.

    Attributes:
        served: Their calls at the servers; None where the log does not tell them.
        pooled: Their tools and rewards, and the pools of these; None where nobody looked.
    """

    served: ServedCalls | None = None
    pooled: PooledCalls | None = None

    @property
    def places(self) -> list[int]:
        """How many calls each pool runs at once."""
        return [] if self.pooled is None else [pool.places for pool in self.pooled.pools]

    @property
    def pools(self) -> list[dict[str, Any]]:
        """The pools: name, places, waited_share (of the time of its calls)."""
        known = [] if self.pooled is None else self.pooled.pools
        return [
            {"name": pool.name, "places": pool.places, "waited_share": pool.waited_share} for pool in known
        ]

    @property
    def are_known(self) -> bool:
        """Whether all workers of a step have to be replayed together."""
        return self.served is not None or bool(self.places)


def waits_of(run: Run) -> StationWaits:
    """Return where the requests of a run wait."""
    return StationWaits(served_calls(run, run.digest.of_workers()), PooledCalls(run))
