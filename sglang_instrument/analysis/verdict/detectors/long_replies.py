"""Find replies that made a step long: longer than usual in the whole step, or a single one.

Some step always draws the longest reply. So those that chance explains are told last, as no fault.
"""

import math
from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.effects import Limits, find_trend, shared_values, slow_steps, without_trend
from sglang_instrument.analysis.verdict.evidence import Evidence
from sglang_instrument.analysis.verdict.finding import Finding, seconds, step_name
from sglang_instrument.analysis.verdict.outliers import slow_single

_LIMITS: Final = Limits(times=1.3, spread=0.03)
_LONG: Final = 1.2  # times the median step, from which on what it drew is told
_MOST_OF_IT: Final = 0.5


def find_long_replies(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each step with longer replies, and for a reply that is longer than chance explains."""
    requests = evidence.digest.requests.filter(pl.col("response_tokens") > 0)
    if requests.is_empty():
        return
    rates = evidence.calls.filter(pl.col("kind") == "engine").group_by(*STEP_OF_WORKER, "request_id").agg(
        engine_sec=pl.col("usual_sec").sum()
    )
    requests = requests.drop("engine_sec").join(rates, on=[*STEP_OF_WORKER, "request_id"])
    found = [*_steps(evidence, requests), *_single(evidence, requests)]
    yield from found
    known = {(one.step, one.validate) for one in found}
    yield from (one for one in _drawn(evidence, requests) if (one.step, one.validate) not in known)


def _steps(evidence: Evidence, requests: pl.DataFrame) -> Iterator[Finding]:
    # Who draws which prompt is chance, so the replies of all workers count alike.
    shared = shared_values(
        requests.group_by(STEP).agg(value=pl.col("response_tokens").log().mean()), evidence.windows
    )
    slow = slow_steps(without_trend(shared, find_trend(shared)), _LIMITS)
    long = requests.join(slow.select(*STEP, "excess"), on=STEP)
    long = long.with_columns(excess_sec=pl.col("engine_sec") * (1 - (-pl.col("excess")).exp()))
    for row in evidence.worth(evidence.lost_in_requests(long)).join(slow, on=STEP).iter_rows(named=True):
        times = math.exp(row["excess"])
        sentence = (
            f"{step_name(row['step'], row['validate'])}: replies were {times:.1f} times as long as usual, which "
            f"took {seconds(row['lost_sec'])} more"
        )
        place = {"step": row["step"], "validate": row["validate"]}
        yield Finding(
            "long-replies", "step", row["lost_sec"], sentence, **place, event="engine", evidence={"times": times}
        )


def _single(evidence: Evidence, requests: pl.DataFrame) -> Iterator[Finding]:
    row = slow_single(requests.with_columns(spent=pl.col("response_tokens").cast(pl.Float64)))
    if row is None:
        return
    rest = row["engine_sec"] * (1 - row["next_sec"] / row["spent"])
    excess = pl.DataFrame({**{name: row[name] for name in (*STEP_OF_WORKER, "request_id")}, "excess_sec": rest})
    lost = evidence.worth(evidence.lost_in_requests(excess))
    if lost.is_empty():
        return
    lost_sec = float(lost["lost_sec"][0])
    tokens, following = int(row["spent"]), int(row["next_sec"])
    sentence = (
        f"{step_name(row['step'], row['validate'])}: worker {row['worker']} wrote one reply of {tokens:,} tokens, the "
        f"next longest of the run has {following:,} (request {row['request_id']}); {seconds(lost_sec)} lost"
    )
    place: dict[str, Any] = {name: row[name] for name in (*STEP_OF_WORKER, "request_id")}
    numbers = {"tokens": tokens, "next_tokens": following}
    yield Finding("long-replies", "request", lost_sec, sentence, **place, event="engine", evidence=numbers)


def _drawn(evidence: Evidence, requests: pl.DataFrame) -> Iterator[Finding]:
    """Yield a finding for each step that was long because of the replies that it drew."""
    busy = evidence.workers.group_by(STEP).agg(pl.col("busy_sec").max())
    usual = pl.col("busy_sec").median().over("validate")
    longer = busy.with_columns(over=pl.col("busy_sec") - usual, usual=usual)
    longer = longer.filter((pl.col("busy_sec") > _LONG * pl.col("usual")) & (pl.len().over("validate") > 2))
    for step in longer.sort(*STEP).iter_rows(named=True):
        here = requests.filter(*(pl.col(name) == step[name] for name in STEP))
        if here.is_empty():
            continue
        row = here.sort("response_tokens").row(-1, named=True)
        cut = _usual_longest(requests, here)
        saved = row["engine_sec"] * max(0.0, 1 - cut / row["response_tokens"])
        cut_off = (1 - cut / pl.col("response_tokens")).clip(lower_bound=0.0)
        scaled = max(0.0, 1 - _usual_length(requests, here) / float(here["response_tokens"].mean() or 1.0))
        excess = here.with_columns(
            excess_sec=pl.col("engine_sec") * pl.max_horizontal(cut_off, pl.lit(scaled))
        )
        lost = evidence.worth(evidence.lost_in_requests(excess))
        if lost.is_empty() or lost["lost_sec"][0] < _MOST_OF_IT * step["over"]:
            continue
        single = excess.filter(pl.col("request_id") == row["request_id"]).with_columns(excess_sec=pl.lit(saved))
        alone = float(evidence.lost_in_requests(single)["lost_sec"].sum())
        yield _drawn_finding(row, float(lost["lost_sec"][0]), alone, cut)


def _usual_longest(requests: pl.DataFrame, here: pl.DataFrame) -> float:
    """Return the median, over the other steps, of the longest reply of a step."""
    others = requests.filter(pl.col("validate") == here["validate"][0]).join(here, on=STEP, how="anti")
    longest: Any = others.group_by(STEP).agg(pl.col("response_tokens").max())["response_tokens"].median()
    return float(longest or 0.0)


def _usual_length(requests: pl.DataFrame, here: pl.DataFrame) -> float:
    """Return the median, over the other steps, of the mean length of a step's replies."""
    others = requests.filter(pl.col("validate") == here["validate"][0]).join(here, on=STEP, how="anti")
    mean: Any = others.group_by(STEP).agg(pl.col("response_tokens").mean())["response_tokens"].median()
    return float(mean or 0.0)


def _drawn_finding(row: dict[str, Any], lost_sec: float, alone_sec: float, cut: float) -> Finding:
    where = step_name(row["step"], row["validate"])
    numbers = {"tokens": row["response_tokens"], "usual_longest": cut, "drawn": True}
    if alone_sec > _MOST_OF_IT * lost_sec:
        sentence = (
            f"{where}: worker {row['worker']} drew the longest reply, {row['response_tokens']:,} tokens, where "
            f"{cut:,.0f} are the usual longest (request {row['request_id']}); {seconds(alone_sec)} more"
        )
        place: dict[str, Any] = {name: row[name] for name in (*STEP_OF_WORKER, "request_id")}
        return Finding("long-replies", "request", alone_sec, sentence, **place, event="engine", evidence=numbers)
    sentence = f"{where} drew longer replies than most; {seconds(lost_sec)} more"
    place = {name: row[name] for name in STEP}
    return Finding("long-replies", "step", lost_sec, sentence, **place, event="engine", evidence=numbers)
