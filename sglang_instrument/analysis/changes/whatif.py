"""Estimate, from recorded tokens and times, how long steps would take under other rules. It is a model."""

import math
from dataclasses import replace
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.steps import step_table, worker_steps
from sglang_instrument.analysis.changes.recorded import OF_WORKER, pools, recorded_requests, request_rows
from sglang_instrument.analysis.changes.replay import replay
from sglang_instrument.analysis.changes.rules import Factors, Rules, under
from sglang_instrument.analysis.changes.statistics import difference
from sglang_instrument.analysis.ledger.engine_speed import EngineSpeed, engine_calls, fit_speed
from sglang_instrument.analysis.run.digest import KINDS, Digest
from sglang_instrument.errors import InstrumentError
from sglang_instrument.schema import kind_of

ASSUMPTIONS: Final = (
    "the time before a first token, and of a token beside other calls, is what fits the recorded calls",
    "requests begin when they did; one that is cut ends at once; the effect on its reward is not estimated",
)
_ASKED: Final = ["step", "validate", "worker", "request_id"]


def what_if(digest: Digest, rules: Rules, event_times: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return one row per step.

    Args:
        digest: Of the run.
        rules: The changed rules.
        event_times: The result of `Run.event_times`, where `rules.scale` names events.

    Returns:
        step, validate; recorded_sec: the longest of the workers' durations without barriers; predicted_sec:
        the same under the rules; requests; cut: how many of them end early; reward_all, reward_cut: mean
        recorded rewards of all requests and of those that are cut.
    """
    return Model(digest).predict(rules, event_times)


class Model:
    """A recorded run that can be replayed under many rules.

    `fit` is the speed of its engines, as fitted to the recorded calls.
    """

    def __init__(self, digest: Digest, speed: EngineSpeed | None = None) -> None:
        digest = digest.of_workers()
        fit = fit_speed(engine_calls(digest), speed)
        self.fit = fit
        self._workers = worker_steps(digest).select(*OF_WORKER, "busy_sec")
        self._rows = request_rows(digest)
        self._recorded = recorded_requests(self._rows, digest, fit)
        self._pools = pools(self._rows, fit.speed)
        self._kept: tuple[Any, tuple[list[float], list[bool]]] = (None, ([], []))
        self._was, _ = self._ends(Rules(), [Factors()] * len(self._rows))

    @property
    def engine(self) -> dict[str, Any] | None:
        """The fitted speed, and `error`: half of the calls are farther from it. None if none was fitted."""
        if self.fit.error is None:
            return None
        return {**self.fit.speed._asdict(), "error": math.expm1(self.fit.error)}

    def predict(self, rules: Rules, event_times: pl.DataFrame | None = None) -> pl.DataFrame:
        """Return what `what_if` returns."""
        if event_times is None and (unknown := [name for name in rules.scale if name not in KINDS]):
            raise ValueError(f"{unknown[0]!r} is no kind of work; pass its times as event_times")
        done, cut = self._ends(rules, self._factors(rules, event_times))
        requests = self._rows.select(*_ASKED, "reward").with_columns(
            was=pl.Series(self._was, dtype=pl.Float64),
            done=pl.Series(done, dtype=pl.Float64),
            cut=pl.Series(cut, dtype=pl.Boolean),
            late=pl.lit(False),
        )
        if rules.oversample:
            needed = (pl.len() / (1 + rules.oversample)).ceil()
            late = (pl.col("done").rank("ordinal") > needed).over(OF_WORKER)
            requests = requests.with_columns(cut=pl.col("cut") | late, late=late)
        workers = requests.group_by(OF_WORKER).agg(
            was=pl.col("was").max(), done=pl.col("done").filter(~pl.col("late")).max()
        )
        workers = _around_requests(workers.join(self._workers, on=OF_WORKER), rules, event_times)
        predicted = pl.col("busy_sec") - pl.col("around") - pl.col("was") + pl.col("done")
        return _by_step(requests, workers.with_columns(predicted=predicted.clip(lower_bound=0.0)), rules)

    def _ends(self, rules: Rules, factors: list[Factors]) -> tuple[list[float], list[bool]]:
        """Return when each request ends, since its worker's step began, and whether it ends early.

        Over-sampling and dealing anew change no request, so the answer is kept for the next question.
        """
        asked = replace(rules, oversample=None, rebalance=False)
        if self._kept[0] != (asked, factors):
            self._kept = (asked, factors), self._replayed(rules, factors)
        return self._kept[1]

    def _replayed(self, rules: Rules, factors: list[Factors]) -> tuple[list[float], list[bool]]:
        changed = [under(one, rules, factor) for one, factor in zip(self._recorded, factors, strict=True)]
        ends, cut = [0.0] * len(changed), [cut for _, cut in changed]
        for members in self._pools:
            requests = [changed[number][0] for number in members]
            for number, request, end in zip(members, requests, replay(requests, self.fit.speed), strict=True):
                ends[number] = end
                cut[number] |= end >= request.begin + request.most_sec
        return ends, cut

    def _factors(self, rules: Rules, event_times: pl.DataFrame | None) -> list[Factors]:
        """Return how many times as long the work of each request takes by the events that are scaled."""
        rows = self._rows.with_columns(in_engine=pl.lit(0.0), elsewhere=pl.lit(0.0))
        for name, factor in rules.scale.items():
            if name in KINDS or event_times is None:
                continue
            of_event = event_times.filter(event=name).select(*_ASKED, saved=pl.col("sec") * (1 - factor))
            rows = rows.join(of_event, on=_ASKED, how="left", maintain_order="left")
            where = "in_engine" if kind_of(name).phase in KINDS["engine"] else "elsewhere"
            rows = rows.with_columns(pl.col(where) + pl.col("saved").fill_null(0.0)).drop("saved")
        # An event that contains engine calls saves in the engine what it saves beyond the time outside.
        outside = (pl.col("duration_sec") - pl.col("engine_sec")).clip(lower_bound=0.0)
        within = pl.min_horizontal("elsewhere", outside)
        in_engine = pl.col("in_engine") + pl.col("elsewhere") - within
        factors = rows.select(
            engine=rules.scale.get("engine", 1.0) - _share(in_engine, pl.col("engine_sec")),
            others=1 - _share(within, outside),
        )
        return [Factors(max(0.0, engine), max(0.0, others)) for engine, others in factors.iter_rows()]


def _share(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    return pl.when(whole > 0).then(part / whole).otherwise(0.0)


def _around_requests(workers: pl.DataFrame, rules: Rules, event_times: pl.DataFrame | None) -> pl.DataFrame:
    """Add `around`: the time that workers save outside of requests."""
    if event_times is None:
        return workers.with_columns(around=pl.lit(0.0))
    own = event_times.filter(pl.col("request_id").is_null() & pl.col("event").is_in(list(rules.scale)))
    less = 1 - pl.col("event").replace_strict(rules.scale, default=1.0, return_dtype=pl.Float64)
    saved = own.group_by(OF_WORKER).agg(around=(pl.col("sec") * less).sum())
    return workers.join(saved, on=OF_WORKER, how="left").with_columns(pl.col("around").fill_null(0.0))


def _by_step(requests: pl.DataFrame, workers: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    key = ["step", "validate"]
    times = workers.group_by(key).agg(
        recorded_sec=pl.col("busy_sec").max(),
        predicted_sec=pl.col("predicted").max(),
        evened_sec=pl.col("predicted").mean(),
    )
    counts = requests.group_by(key).agg(
        requests=pl.len().cast(pl.Int64),
        cut=pl.col("cut").sum().cast(pl.Int64),
        reward_all=pl.col("reward").mean(),
        reward_cut=pl.col("reward").filter(pl.col("cut")).mean(),
        longest_sec=pl.col("done").filter(~pl.col("late")).max(),
    )
    table = times.join(counts, on=key).sort("validate", "step")
    if rules.rebalance:
        dealt = pl.min_horizontal("predicted_sec", pl.max_horizontal("evened_sec", "longest_sec"))
        table = table.with_columns(predicted_sec=dealt)
    return table.drop("evened_sec", "longest_sec")


def validation_of(predicted: pl.DataFrame, real: Digest) -> dict[str, Any]:
    """Compare a prediction with a run in which the rules were in force.

    Args:
        predicted: As `what_if` returns it.
        real: Of the other run.

    Returns:
        steps: that both have; predicted_sec, real_sec: geometric means over them, without barriers; ratio:
        predicted over real; low, high: its 95 % interval, as `compare` has it for steps with other prompts;
        None with fewer than two steps.

    Raises:
        InstrumentError: The two have no step in common.
    """
    busy = step_table(real).select("step", "validate", "busy_sec")
    both = predicted.join(busy, on=["step", "validate"]).sort("validate", "step")
    if both.is_empty():
        raise InstrumentError("the two runs have no step in common")
    found = difference(both["busy_sec"].to_list(), both["predicted_sec"].to_list())
    low, high = found.interval() or (None, None)
    answer = {"steps": len(both), "predicted_sec": found.other, "real_sec": found.one}
    return {**answer, "ratio": found.ratio, "low": low, "high": high}
