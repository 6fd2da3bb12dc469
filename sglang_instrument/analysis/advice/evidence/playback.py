"""Play the recorded requests again under a change, and tell by how much sooner each step would end."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Final

import polars as pl

from sglang_instrument.analysis.advice.evidence.change import Change
from sglang_instrument.analysis.answers.steps import STEP
from sglang_instrument.analysis.changes.replaying.pools import PooledCalls
from sglang_instrument.analysis.changes.replaying.recorded import recorded_requests, request_rows
from sglang_instrument.analysis.changes.replaying.replay import ReplayedRequest, Stations, replay, replay_at
from sglang_instrument.analysis.changes.replaying.rules import Factors, Recorded, under
from sglang_instrument.analysis.changes.replaying.server_work import ServedCalls, served_calls
from sglang_instrument.analysis.changes.replicas import ServedRun, saved_of_loop
from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.ledger.loop import Loop, steady

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

MOST_CALLS: Final = 20_000  # that are replayed; of longer runs, some steps are
_NOTHING: Final = Factors()
_Place = tuple[int, bool]


class Playback:
    """A run that can be played again: by the engines' own logs of its calls, else by what their callers saw.

    Args:
        run: The run.
        loop: Its loop.
        served: Its steps and the speed of its servers.
        pools: Calls of tools and rewards, which may have waited for a place.
        most_calls: How many calls are replayed, about: of a run with more, every second step, or third ...
    """

    def __init__(
        self, run: Run, loop: Loop, served: ServedRun, pools: PooledCalls, most_calls: int = MOST_CALLS
    ) -> None:
        self._loop, self.served, self._pools = loop, served, pools
        by_step = _since_step(loop.lanes.paths.of_workers.filter(~pl.col("validate")))
        self._rows = _of_some_steps(request_rows(by_step), most_calls)
        by_step = by_step.filter(pl.col("step").is_in(self._rows["step"].unique().to_list()))
        self._at_servers = served_calls(run, by_step)
        digest = by_step
        if self._at_servers is None:
            digest = served.digest
            self._rows = _of_some_steps(request_rows(digest), most_calls)
        self._durations: list[float] = self._rows["duration_sec"].to_list()
        self._recorded = recorded_requests(
            self._rows, digest, served.fit, served.all_running, self._at_servers
        )
        self._members = self._by_step()
        self._unchanged = {
            place: [self._changed(None, number, Change()) for number in members]
            for place, members in self._members.items()
        }
        self._was = {place: self._played(place, Change(), self._unchanged[place]) for place in self._members}
        self.shape = loop.shape()

    def _by_step(self) -> dict[_Place, list[int]]:
        """Return the numbers of the requests of each step."""
        grouped = self._rows.with_row_index("number").group_by(STEP, maintain_order=True).agg("number")
        members = {(step, validate): numbers for step, validate, numbers in grouped.iter_rows()}
        return {place: members[place] for place in sorted(members)}

    @property
    def step_sec(self) -> float:
        """Mean seconds of a step, to the begin of the next."""
        return float(self._steady(self._loop.steps())["to_next_step_sec"].mean() or 0.0)  # type: ignore[arg-type]

    @property
    def requests(self) -> int:
        """How many requests are replayed."""
        return sum(map(len, self._members.values()))

    def saved(self, change: Change) -> list[float]:
        """Return the seconds that each steady step which is replayed saves; a loss is negative."""
        rows = []
        for place in self._members:
            was, will = self._before(place, change), self._ends(place, change)
            outside_sec = change.outside_sec.get(place[0], 0.0)
            took = [sum(ends) / len(ends) if ends else 0.0 for ends in (was, will)]
            ratio = took[1] / took[0] if took[0] > 0 else 1.0
            rows.append((*place, self._end(was), self._end_of(will, was, change) - outside_sec, ratio))
        schema = {"step": pl.Int64, "validate": pl.Boolean, "was": pl.Float64, "will": pl.Float64}
        ends = pl.DataFrame(rows, schema={**schema, "ratio": pl.Float64}, orient="row")
        steps = saved_of_loop(self._loop, ends)
        if self.shape is None:  # without the trainer's records, what the rollout saves is what is known
            steps = steps.with_columns(saved_sec="rollout_saved_sec")
        replayed = self._steady(steps).join(ends, on=STEP, how="semi", maintain_order="left")
        saved: list[float] = replayed["saved_sec"].drop_nulls().to_list()
        return saved

    def _before(self, place: _Place, change: Change) -> list[float]:
        """Return the ends before a change: more servers are compared with as many that are evenly busy."""
        calls = self._at_servers
        if calls is None or not change.servers or calls.to_fewest:
            return self._was[place]
        evenly = calls._replace(to_fewest=True)
        return self._at_recorded_servers(evenly, place, Change(), self._unchanged[place])

    def cut(self, change: Change) -> tuple[float, list[float]]:
        """Return the share of the requests that a change ends early, and their recorded rewards."""
        numbers = [number for members in self._members.values() for number in members]
        cut = [number for number in numbers if self._is_cut(number, change)]
        rewards = self._rows["reward"].gather(cut).drop_nulls().to_list()
        return len(cut) / len(numbers) if numbers else 0.0, rewards

    def _is_cut(self, number: int, change: Change) -> bool:
        """Return whether a change ends a request early, which lasted as long as recorded until then."""
        most_sec = change.rules.max_seconds
        if most_sec is not None and self._durations[number] > most_sec:
            return True
        return under(self._recorded[number], change.rules, _NOTHING)[1]

    def _steady(self, steps: pl.DataFrame) -> pl.DataFrame:
        chosen = steps.filter(~pl.col("validate"))
        return steady(chosen, self._loop.shape())

    def _end(self, ends: list[float]) -> float:
        return max(ends, default=0.0)

    def _end_of(self, ends: list[float], was: list[float], change: Change) -> float:
        """Return when as many requests as were recorded are done."""
        if not change.more_requests or not was:
            return self._end(ends)
        return sorted(ends)[len(was) - 1]

    def _ends(self, place: _Place, change: Change) -> list[float]:
        requests = [self._changed(place[0], number, change) for number in self._members[place]]
        if not change.changes_servers and requests == self._unchanged[place]:
            return self._was[place]
        return self._played(place, change, requests)

    def _played(self, place: _Place, change: Change, requests: list[ReplayedRequest]) -> list[float]:
        members = self._members[place]
        if self._at_servers is not None:
            return self._at_recorded_servers(self._at_servers, place, change, requests)
        engines, limit = self.served.servers + change.servers, change.limit or self.served.limit
        if self.served.source == "workers":
            return self._by_worker(members, requests, change, limit)
        requests = [*requests, *self._more(place[0], members, change)]
        return replay(requests, self.served.speed, limit, engines)

    def _at_recorded_servers(
        self, calls: ServedCalls, place: _Place, change: Change, requests: list[ReplayedRequest]
    ) -> list[float]:
        """Return the ends where the engines' logs tell what each call asked of which server."""
        paces = calls.paces.get(place, [1.0] * calls.engines)
        stations = Stations(
            calls.speed,
            change.limit or calls.limit,
            calls.engines + change.servers,
            prefills_alone=True,
            paces=[*paces, *(1.0 for _ in range(change.servers))],
            to_fewest=calls.to_fewest or change.servers > 0,
        )
        return replay_at([*requests, *self._more(place[0], self._members[place], change)], stations)

    def _by_worker(
        self, members: list[int], requests: list[ReplayedRequest], change: Change, limit: int | None
    ) -> list[float]:
        """Return the ends where each worker has an engine of its own."""
        workers = self._rows["worker"].gather(members).to_list()
        ends: list[float] = []
        for worker in sorted(set(workers)):
            of_worker = [request for request, other in zip(requests, workers, strict=True) if other == worker]
            ends += replay(of_worker, self.served.speed, limit)
        return ends

    def _more(self, step: int, members: list[int], change: Change) -> list[ReplayedRequest]:
        """Return requests that are begun beside those of a step: like some of all steps."""
        extra = round(change.more_requests * len(members))
        random = Random(step)  # noqa: S311 - repeatable, not secret
        numbers = [random.randrange(len(self._recorded)) for _ in range(extra)]
        begins = sorted(self._recorded[number].request.begin for number in members)
        return [
            replace(self._changed(None, number, change), begin=begins[random.randrange(len(begins))])
            for number in numbers
        ]

    def _changed(self, step: int | None, number: int, change: Change) -> ReplayedRequest:
        recorded = self._recorded[number]
        if step is not None and (change.free_pools or change.most_sec):
            recorded = self._without_waits(recorded, self._rows["request_id"][number], step, change)
        return under(recorded, change.rules, _NOTHING)[0]

    def _without_waits(self, recorded: Recorded, request_id: str, step: int, change: Change) -> Recorded:
        """Return a request whose tools and reward take as long as they would under a change."""
        tools = list(recorded.answers["tool"])
        reward_sec, rest_sec = recorded.reward_sec, recorded.request.rest_sec
        for turn, sec in self._pools.saved(step, request_id, change.free_pools, change.most_sec).items():
            if turn is not None and turn < len(tools):
                tools[turn] = max(0.0, tools[turn] - sec)
            else:
                less = min(sec, reward_sec)
                reward_sec, rest_sec = reward_sec - less, max(0.0, rest_sec - less)
        request = replace(recorded.request, rest_sec=rest_sec)
        return replace(
            recorded, request=request, answers={**recorded.answers, "tool": tools}, reward_sec=reward_sec
        )


def _since_step(digest: Digest) -> Digest:
    """Return a digest whose workers all begin with their step: they share its servers."""
    begun = pl.col("start_us").min().over(STEP)
    tables = digest.tables()
    return Digest(**{**tables, "steps": tables["steps"].with_columns(start_us=begun)})


def _of_some_steps(rows: pl.DataFrame, most_calls: int) -> pl.DataFrame:
    """Return the requests of evenly chosen steps that have about `most_calls` calls of the engine."""
    calls = int(rows["turns"].fill_null(1).sum())
    every = max(1, -(-calls // most_calls))
    if every == 1:
        return rows
    return rows.join(rows.select(STEP).unique().sort(STEP).gather_every(every), on=STEP, how="semi")
