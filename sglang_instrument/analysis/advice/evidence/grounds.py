"""Gather what levers look at: settings, loop, gauges, calls, pools, and a replay of the requests."""

from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl

from sglang_instrument.analysis.advice.evidence.names import NamedSetting, setting_of, values_by_process
from sglang_instrument.analysis.advice.evidence.playback import MOST_CALLS, Playback
from sglang_instrument.analysis.answers.engine.requests import cached_engine_requests
from sglang_instrument.analysis.answers.routing.gauges import gauge_table
from sglang_instrument.analysis.answers.routing.server_calls import server_calls
from sglang_instrument.analysis.changes.replaying.pools import PooledCalls
from sglang_instrument.analysis.changes.replaying.serving import serving_of
from sglang_instrument.analysis.changes.replicas import served_run
from sglang_instrument.analysis.ledger.loop import Loop
from sglang_instrument.analysis.settings.recorded import Setting, settings_of_run

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run


class Grounds:
    """What a lever gets. Each part is computed when it is first asked for.

    Attributes:
        run: The run.
        loop: Its loop.
        most_calls: How many calls are replayed, about.

    Raises:
        InstrumentError: As `served_run`, when `playback` is asked for.
    """

    def __init__(self, run: "Run", loop: Loop, most_calls: int = MOST_CALLS) -> None:
        self.run, self.loop, self.most_calls = run, loop, most_calls

    @cached_property
    def settings(self) -> list[Setting]:
        """The settings of the run."""
        return settings_of_run(self.run)

    def setting(self, key: str) -> NamedSetting:
        """Return a setting, one of `names.NAMES`."""
        return setting_of(self.settings, key)

    def by_server(self, key: str) -> dict[str, NamedSetting]:
        """Return a setting of each server with calls, as its process, or its scheduler's, recorded it."""
        known = values_by_process(self.settings, key)
        names = cached_engine_requests(self.run).select("server", "scheduler").drop_nulls("server").unique()
        pairs = sorted(names.iter_rows(), key=str)
        return {
            server: known[process]
            for server, scheduler in pairs
            for process in (scheduler, server)
            if process in known
        }

    def differs_by_server(self, key: str) -> bool:
        """Return whether servers have different values of a setting: then no value is that of the run."""
        return len({setting.value for setting in self.by_server(key).values()}) > 1

    @cached_property
    def pools(self) -> PooledCalls:
        """The calls of tools and rewards, and their pools."""
        return PooledCalls(self.run)

    @cached_property
    def playback(self) -> Playback:
        """The recorded requests, which can be played again."""
        served = served_run(self.loop.lanes.paths.of_workers, serving_of(self.run))
        return Playback(self.run, self.loop, served, self.pools, self.most_calls)

    @cached_property
    def gauges(self) -> pl.DataFrame:
        """How full the schedulers were: `gauge_table`."""
        return gauge_table(self.run)

    @cached_property
    def calls(self) -> pl.DataFrame:
        """The engine's calls in training steps: `server_calls`."""
        return server_calls(self.run).filter(~pl.col("validate"))

    @cached_property
    def requests(self) -> pl.DataFrame:
        """The requests of training steps."""
        requests: pl.DataFrame = self.loop.lanes.paths.of_workers.filter(~pl.col("validate")).requests
        return requests

    @cached_property
    def mean(self) -> dict[str, float | None]:
        """The means of `Loop.mean`, a step."""
        return self.loop.mean()

    @property
    def step_sec(self) -> float:
        """Mean seconds of a step, to the begin of the next."""
        return self.mean["to_next_step_sec"] or 0.0

    @cached_property
    def queued_share(self) -> float:
        """The share of the calls' time in which they waited for a place in the batch."""
        known = self.calls.drop_nulls(["queue_sec", "call_sec"])
        took = total(known["call_sec"])
        return total(known["queue_sec"]) / took if took else 0.0

    def full_share(self) -> float | None:
        """Return how full of running requests the cache was while requests waited: the median share."""
        waiting = self.gauges.filter(pl.col("waiting") > 0).drop_nulls("kv_cache_running_share")
        share: Any = waiting["kv_cache_running_share"].median()
        return None if share is None else float(share)


def total(values: pl.Series) -> float:
    """Return the sum of a column."""
    return float(values.sum())
