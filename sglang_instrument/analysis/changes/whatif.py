"""Estimate, from recorded tokens and times, how long steps would take under other rules. It is a model."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.steps import STEP, STEP_OF_WORKER, step_table, worker_steps
from sglang_instrument.analysis.changes.metrics import engine_values
from sglang_instrument.analysis.changes.replaying.queueing import fit_with_limit
from sglang_instrument.analysis.changes.replaying.recorded import pools, recorded_requests, request_rows
from sglang_instrument.analysis.changes.replaying.replay import Stations, replay_at
from sglang_instrument.analysis.changes.replaying.rules import Factors, Recorded, Rules, under
from sglang_instrument.analysis.changes.replaying.waits import StationWaits
from sglang_instrument.analysis.changes.savings import Savings
from sglang_instrument.analysis.changes.statistics import difference, first_is_cold
from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.ledger.engine_speed import EngineSpeed, engine_calls, fit_speed
from sglang_instrument.errors import InstrumentError

_OF_WORKER: Final = ["number", *STEP_OF_WORKER]
ASSUMPTIONS: Final = (
    "The engine's speed (before the first token, and per token at each concurrency) is fitted to the "
    "recorded calls.",
    "Each request begins at its recorded time. A cut request ends at the cut. The effect on its reward is "
    "not estimated.",
)


def what_if(digest: Digest, rules: Rules, event_times: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return one row per step.

    Args:
        digest: Of the run.
        rules: The changed rules.
        event_times: The result of `Run.event_times`, where `rules.scale` names events.

    Returns:
        step, validate; recorded_sec: the longest of the workers' durations without barriers; predicted_sec:
        the same under the rules; requests; ended_early: how many of them the rules end early; mean_reward,
        ended_early_reward: mean recorded rewards of all requests and of those that end early.

    Raises:
        InstrumentError: Nothing in the run tells what a rule would do.
    """
    return Model(digest).predict(rules, event_times)


class Model:
    """A recorded run that can be replayed under many rules.

    `fit` is the speed of its engines, as fitted to the recorded calls; `limit` is how many calls an engine
    runs at once, None if any number.

    Args:
        digest: Of the run.
        speed: Of its engines, where it is known.
        waits: Where its requests wait for each other, as `waits_of` has it; without it, at engines alone.
    """

    def __init__(
        self, digest: Digest, speed: EngineSpeed | None = None, waits: StationWaits | None = None
    ) -> None:
        digest = digest.of_workers()
        calls = engine_calls(digest)
        self.fit, self.limit = fit_with_limit(calls) if speed is None else (fit_speed(calls, speed), None)
        waits = waits or StationWaits()
        self._served = waits.served
        self._roles = digest.steps["role"].unique()
        self._workers = worker_steps(digest).select(*STEP_OF_WORKER, "busy_sec")
        self._rows = request_rows(digest)
        self._steps = self._rows.select(STEP).rows()
        self._recorded = recorded_requests(
            self._rows, digest, self.fit, self.limit, waits.served, waits.pooled
        )
        self._stations = self._stations_of(waits)
        self._pools = pools(self._rows, self.fit.speed)
        if waits.are_known:
            self._pools = _of_steps(self._rows)
            self._name_engines()
        self._kept: tuple[Any, tuple[list[float], list[bool]]] = (None, ([], []))
        self._was, _ = self._ends(Rules(), [Factors()] * len(self._rows))

    def _stations_of(self, waits: StationWaits) -> Stations:
        served = waits.served
        if served is not None:
            return Stations(
                served.speed,
                served.limit,
                served.engines,
                waits.places,
                prefills_alone=True,
                to_fewest=served.to_fewest,
            )
        engines = 1 if self.fit.speed.shared or not waits.are_known else self._rows["worker"].n_unique()
        return Stations(self.fit.speed, self.limit, max(1, engines), waits.places)

    def _stations_in(self, number: int) -> Stations:
        """Return the stations as they were in the step of a request."""
        if self._served is None:
            return self._stations
        paces = self._served.paces.get(self._steps[number], ())
        return replace(self._stations, paces=paces)

    def _name_engines(self) -> None:
        """Let each call go to the engine of its worker, where that is known and no server is."""
        if self._served is not None:
            return
        workers = self._rows["worker"].to_list()
        engines = {worker: number for number, worker in enumerate(sorted(set(workers)))}
        if self.fit.speed.shared:
            engines = dict.fromkeys(engines, 0)
        for worker, recorded in zip(workers, self._recorded, strict=True):
            for call in recorded.request.calls:
                call.engine = engines[worker]

    @property
    def engine(self) -> dict[str, Any] | None:
        """The speed, and how good it is; None without a fit.

        Beside the fields of `EngineSpeed`: `limit`; `servers`, where the speed is that of decoding by their
        own logs, else None; `error`: half of the calls are farther off; `replay_error`: as below.
        """
        if self.fit.error is None:
            return None
        error = self.fit.error if self._served is None else self._served.error
        return {
            **self._stations.speed._asdict(),
            "limit": self._stations.limit,
            "servers": None if self._served is None else self._served.engines,
            "error": math.expm1(error or 0.0),
            "replay_error": self.replay_error,
        }

    @cached_property
    def replay_error(self) -> float | None:
        """By how much a replay by the fitted speeds and tokens alone misses the recorded steps: the median.

        A replay of what each call took is exact, whatever the model lacks. One of what calls of so many
        tokens usually take is not, where calls wait for something that it does not know. None without a fit.
        """
        if self.fit.error is None:
            return None
        by_speed = [recorded.by_speed_alone() for recorded in self._recorded]
        alone, _ = self._replayed(Rules(), [Factors()] * len(by_speed), by_speed)
        ends = self._rows.select(*STEP, "was").with_columns(alone=pl.Series(alone, dtype=pl.Float64))
        of_steps = ends.group_by(STEP).agg(pl.col("was", "alone").max())
        both = of_steps.filter((pl.col("was") > 0) & (pl.col("alone") > 0))
        off = (both["alone"] / both["was"]).log().abs().median()
        return None if off is None else math.expm1(float(off))  # type: ignore[arg-type]

    @property
    def has_tokens(self) -> bool:
        """Whether the tokens of any turn are logged, so that caps can be estimated."""
        return any(any(request.tokens) for request in self._recorded)

    def predict(self, rules: Rules, event_times: pl.DataFrame | None = None) -> pl.DataFrame:
        """Return what `what_if` returns."""
        return self.predict_each([rules], event_times).drop("number")

    def predict_each(self, asked: Iterable[Rules], event_times: pl.DataFrame | None = None) -> pl.DataFrame:
        """Return what `what_if` returns for each of several rules, with `number`: of the rules, from 0.

        One table of all answers takes much less time than many small ones.
        """
        played = [self._played(number, rules, event_times) for number, rules in enumerate(asked)]
        requests = pl.concat(of_requests for of_requests, _ in played)
        needed = (pl.len() / (1 + pl.col("oversample"))).ceil()
        late = (pl.col("done").rank("ordinal") > needed).over(_OF_WORKER).fill_null(False)
        requests = requests.with_columns(cut=pl.col("cut") | late, late=late)
        ends = requests.group_by(_OF_WORKER).agg(
            was=pl.col("was").max(), done=pl.col("done").filter(~pl.col("late")).max()
        )
        workers = pl.concat(of_workers for _, of_workers in played).join(ends, on=_OF_WORKER, how="left")
        workers = workers.with_columns(pl.col("was", "done", "saved").fill_null(0.0))
        predicted = pl.col("busy_sec") - pl.col("saved") - pl.col("was") + pl.col("done")
        return _by_step(requests, workers.with_columns(predicted=predicted.clip(lower_bound=0.0)))

    def _played(
        self, number: int, rules: Rules, event_times: pl.DataFrame | None
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the requests under the rules, and the workers with what they save outside of requests."""
        if (rules.max_tokens or rules.max_turn_tokens) and not self.has_tokens:
            raise InstrumentError("no tokens are logged; caps cannot be estimated")
        savings = Savings(rules, event_times, self._roles)
        done, cut = self._ends(rules, savings.factors(self._rows))
        requests = self._rows.select(
            *STEP_OF_WORKER,
            "begin",
            "reward",
            number=pl.lit(number),
            was=pl.Series(self._was, dtype=pl.Float64),
            done=pl.Series(done, dtype=pl.Float64),
            cut=pl.Series(cut, dtype=pl.Boolean),
            oversample=pl.lit(rules.oversample, pl.Float64),
        )
        workers = self._workers.join(savings.outside_requests(), on=STEP_OF_WORKER, how="left")
        return requests, workers.with_columns(number=pl.lit(number), rebalance=pl.lit(rules.rebalance))

    def _ends(self, rules: Rules, factors: list[Factors]) -> tuple[list[float], list[bool]]:
        """Return when each request ends, since its worker's step began, and whether it ends early.

        Over-sampling and dealing anew change no request, so the answer is kept for the next question.
        """
        asked = replace(rules, oversample=None, rebalance=False)
        if self._kept[0] != (asked, factors):
            self._kept = (asked, factors), self._replayed(rules, factors)
        return self._kept[1]

    def _replayed(
        self, rules: Rules, factors: list[Factors], recorded: Sequence[Recorded] | None = None
    ) -> tuple[list[float], list[bool]]:
        recorded = self._recorded if recorded is None else recorded
        changed = [under(request, rules, factor) for request, factor in zip(recorded, factors, strict=True)]
        ends, cut = [0.0] * len(changed), [cut for _, cut in changed]
        for members in self._pools:
            requests = [changed[number][0] for number in members]
            replayed = replay_at(requests, self._stations_in(members[0]))
            for number, request, end in zip(members, requests, replayed, strict=True):
                ends[number] = end
                cut[number] |= end >= request.begin + request.most_sec
        return ends, cut


def _of_steps(rows: pl.DataFrame) -> list[list[int]]:
    """Return which rows are of the same step."""
    numbered = rows.with_row_index("number").group_by(STEP, maintain_order=True).agg("number")
    return numbered["number"].to_list()


def _by_step(requests: pl.DataFrame, workers: pl.DataFrame) -> pl.DataFrame:
    times = workers.group_by("number", *STEP).agg(
        recorded_sec=pl.col("busy_sec").max(),
        predicted_sec=pl.col("predicted").max(),
        evened_sec=pl.col("predicted").mean(),
        rebalance=pl.col("rebalance").first(),
    )
    counts = requests.group_by("number", *STEP).agg(
        requests=pl.len().cast(pl.Int64),
        ended_early=pl.col("cut").sum().cast(pl.Int64),
        mean_reward=pl.col("reward").mean(),
        ended_early_reward=pl.col("reward").filter(pl.col("cut")).mean(),
        longest_sec=(pl.col("done") - pl.col("begin")).filter(~pl.col("late")).max(),
    )
    table = times.join(counts, on=["number", *STEP], how="left").sort("number", "validate", "step")
    dealt = pl.min_horizontal("predicted_sec", pl.max_horizontal("evened_sec", "longest_sec"))
    table = table.with_columns(
        pl.col("requests", "ended_early").fill_null(0),
        predicted_sec=pl.when("rebalance").then(dealt).otherwise("predicted_sec"),
    )
    return table.drop("evened_sec", "longest_sec", "rebalance")


def validation_of(predicted: pl.DataFrame, real: Digest) -> dict[str, Any]:
    """Compare a prediction with a run in which the rules were in force.

    Args:
        predicted: As `what_if` returns it.
        real: Of the other run.

    Returns:
        steps: that both have, without a first one that was cold in either; predicted_sec, real_sec: geometric
        means over them, without barriers; ratio: predicted over real; ratio_at_least, ratio_at_most: its
        95 % interval, as `compare` has it for steps with other prompts; None with fewer than two steps.

    Raises:
        InstrumentError: The two have no step in common with a duration.
    """
    busy = step_table(real).select("step", "validate", "busy_sec")
    both = predicted.join(busy, on=STEP).sort("validate", "step")
    both = both.filter((pl.col("busy_sec") > 0) & (pl.col("predicted_sec") > 0))
    if both.is_empty():
        raise InstrumentError("the two runs have no step in common with a duration")
    (paces,) = engine_values([real.filter(~pl.col("validate"))])
    first = both.filter(~pl.col("validate"))["step"].head(1).to_list()
    if first and (
        first_is_cold([paces[step] for step in sorted(paces) if step >= first[0]])
        or first_is_cold(both["recorded_sec"].to_list())
    ):
        both = both.slice(1)
    measured = difference(both["busy_sec"].to_list(), both["predicted_sec"].to_list())
    low, high = measured.interval(0.05) or (None, None)
    answer = {"steps": len(both), "predicted_sec": measured.other, "real_sec": measured.first}
    return {**answer, "ratio": measured.ratio, "ratio_at_least": low, "ratio_at_most": high}
