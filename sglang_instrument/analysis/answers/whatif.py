"""Estimate, from recorded tokens and times, how long steps would take under other rules. It is a model."""

from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.compare import mean_interval
from sglang_instrument.analysis.answers.steps import step_table, worker_steps
from sglang_instrument.analysis.run.digest import KINDS, Digest
from sglang_instrument.analysis.timing.grouped_sums import is_first, sum_before
from sglang_instrument.errors import InstrumentError

ASSUMPTIONS: Final = (
    "the engine is as fast with fewer requests in it; in truth the remaining ones become faster",
    "a capped turn takes the recorded seconds per token; work before and after it is as long as recorded",
    "a request that is cut ends at once; the effect on its reward is not estimated",
)
_OF_WORKER: Final = ["step", "validate", "worker"]
_ASKED: Final = ["step", "validate", "worker", "request_id"]
_REQUEST: Final = ["source", *_ASKED]


@dataclass(frozen=True)
class Rules:
    """The changed rules; None changes nothing.

    Attributes:
        max_tokens: Most tokens of a response, over all its turns.
        max_turn_tokens: Most tokens of one turn (`max_new_tokens` of an engine call).
        max_turns: Most turns of a request.
        max_seconds: Most seconds of a request.
        oversample: The recorded requests include this share more than needed: a step ends when
            1 / (1 + oversample) of each worker's requests are done.
        scale: Factors for the time of kinds of work (keys of `KINDS`) or of events; 0 removes it.
        rebalance: Requests are distributed anew, so that all workers end together, but not before the longest
            request.
    """

    max_tokens: int | None = None
    max_turn_tokens: int | None = None
    max_turns: int | None = None
    max_seconds: float | None = None
    oversample: float | None = None
    scale: dict[str, float] = field(default_factory=dict)
    rebalance: bool = False


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
    digest = digest.of_workers()
    requests = _shortened(digest, rules, event_times).join(
        worker_steps(digest).select(*_OF_WORKER, "busy_sec", begun_us="start_us"), on=_OF_WORKER
    )
    started = (pl.col("start_us") - pl.col("begun_us")) / 1e6
    requests = requests.with_columns(was=started + pl.col("duration_sec"), done=started + pl.col("new_sec"))
    if rules.oversample:
        needed = (pl.len() / (1 + rules.oversample)).ceil()
        late = pl.col("done").rank("ordinal") > needed
        requests = requests.with_columns(
            cut=pl.col("cut") | late.over(_OF_WORKER), late=late.over(_OF_WORKER)
        )
    else:
        requests = requests.with_columns(late=pl.lit(False))
    workers = requests.group_by(_OF_WORKER).agg(
        busy_sec=pl.col("busy_sec").first(),
        was=pl.col("was").max(),
        done=pl.col("done").filter(~pl.col("late")).max(),
    )
    workers = _around_requests(workers, rules, event_times)
    predicted = pl.col("busy_sec") - pl.col("around") - pl.col("was") + pl.col("done")
    workers = workers.with_columns(predicted=predicted.clip(lower_bound=0.0))
    return _by_step(requests, workers, rules)


def _around_requests(workers: pl.DataFrame, rules: Rules, event_times: pl.DataFrame | None) -> pl.DataFrame:
    """Add `around`: the time that workers save outside of requests."""
    if event_times is None:
        return workers.with_columns(around=pl.lit(0.0))
    own = event_times.filter(pl.col("request_id").is_null() & pl.col("event").is_in(list(rules.scale)))
    less = 1 - pl.col("event").replace_strict(rules.scale, default=1.0, return_dtype=pl.Float64)
    saved = own.group_by(_OF_WORKER).agg(around=(pl.col("sec") * less).sum())
    return workers.join(saved, on=_OF_WORKER, how="left").with_columns(pl.col("around").fill_null(0.0))


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


def _shortened(digest: Digest, rules: Rules, event_times: pl.DataFrame | None) -> pl.DataFrame:
    """Return the requests with `new_sec`, their duration under the rules, and `cut`: they end early."""
    turns = _kept(digest, rules)
    cut_here = pl.col("kept") < 1.0
    last = (pl.col("number") + 1 == rules.max_turns) if rules.max_turns is not None else pl.lit(False)
    last = last & ~pl.col("first").shift(-1, fill_value=True)
    # The tools and interactions after a cut turn, and after the last allowed turn, do not run.
    after = pl.when(cut_here | last).then(pl.col("tool_sec") + pl.col("interaction_sec")).otherwise(0.0)
    saved = pl.col("engine_sec") * (1 - pl.col("kept")) + after
    turns = turns.with_columns(saved=saved, cut=cut_here)
    sums = turns.group_by(_REQUEST).agg(pl.col("saved").sum(), pl.col("cut").any())
    requests = digest.requests.join(sums, on=_REQUEST, how="left").with_columns(
        pl.col("saved").fill_null(0.0), pl.col("cut").fill_null(False)
    )
    requests, scaled = _scaled(requests, rules, event_times)
    new = (pl.col("duration_sec") - pl.col("saved") - scaled).clip(lower_bound=0.0)
    requests = requests.with_columns(new_sec=new)
    if rules.max_seconds is None:
        return requests
    over = pl.col("new_sec") > rules.max_seconds
    return requests.with_columns(
        new_sec=pl.col("new_sec").clip(upper_bound=rules.max_seconds), cut=pl.col("cut") | over
    )


def _kept(digest: Digest, rules: Rules) -> pl.DataFrame:
    """Return the turns with their `number`, and `kept`: the share of their tokens that the caps leave."""
    turns = digest.turns.sort(*_REQUEST, "turn").with_columns(
        tokens=pl.col("response_tokens").fill_null(0), first=is_first(_REQUEST), one=pl.lit(1, pl.Int64)
    )
    tokens = pl.col("tokens")
    turns = turns.with_columns(number=sum_before(pl.col("one"), "first"))
    before = sum_before(tokens, "first")
    kept = pl.lit(1.0)
    if rules.max_tokens is not None:
        room = (rules.max_tokens - before).clip(lower_bound=0)
        kept = pl.when(tokens > room).then(room / tokens).otherwise(1.0)
        kept = pl.when((before > 0) & (room == 0)).then(0.0).otherwise(kept)
    if rules.max_turn_tokens is not None:
        of_turn = pl.when(tokens > rules.max_turn_tokens).then(rules.max_turn_tokens / tokens).otherwise(1.0)
        kept = pl.min_horizontal(kept, of_turn)
    if rules.max_turns is not None:
        kept = pl.when(pl.col("number") >= rules.max_turns).then(0.0).otherwise(kept)
    turns = turns.with_columns(kept=kept)
    # A cut reply is the last one of its request.
    over = sum_before((pl.col("kept") < 1.0).cast(pl.Int64), "first") > 0
    return turns.with_columns(kept=pl.when(over).then(0.0).otherwise("kept"))


def _scaled(
    requests: pl.DataFrame, rules: Rules, event_times: pl.DataFrame | None
) -> tuple[pl.DataFrame, pl.Expr]:
    """Return the requests, and an expression of the time that scaled work saves."""
    saved = pl.lit(0.0)
    for name, factor in rules.scale.items():
        column = f"{name}_sec"
        if name not in KINDS:
            if event_times is None:
                raise ValueError(f"{name!r} is no kind of work; pass its times as event_times")
            of_event = event_times.filter(pl.col("event") == name).select(
                *_ASKED, pl.col("sec").alias(column)
            )
            requests = requests.join(of_event, on=_ASKED, how="left").with_columns(
                pl.col(column).fill_null(0.0)
            )
        saved = saved + pl.col(column) * (1 - factor)
    return requests, saved


def validation_of(predicted: pl.DataFrame, real: Digest) -> dict[str, Any]:
    """Compare a prediction with a run in which the rules were in force.

    Args:
        predicted: As `what_if` returns it.
        real: Of the other run.

    Returns:
        steps: that both have; predicted_sec, real_sec: means over them, without barriers; predicted_low,
        predicted_high, real_low, real_high: their 95 % intervals; ratio: predicted over real; overlap:
        whether the intervals do.

    Raises:
        InstrumentError: The two have no step in common.
    """
    busy = step_table(real).select("step", "validate", "busy_sec")
    both = predicted.join(busy, on=["step", "validate"])
    if both.is_empty():
        raise InstrumentError("the two runs have no step in common")
    answer: dict[str, Any] = {"steps": len(both)}
    for of, column in (("predicted", "predicted_sec"), ("real", "busy_sec")):
        values = both[column].to_list()
        answer[f"{of}_sec"] = sum(values) / len(values)
        answer[f"{of}_low"], answer[f"{of}_high"] = mean_interval(values)
    answer["ratio"] = answer["predicted_sec"] / answer["real_sec"] if answer["real_sec"] else 0.0
    disjoint = answer["predicted_low"] > answer["real_high"] or answer["real_low"] > answer["predicted_high"]
    return {**answer, "overlap": not disjoint}
