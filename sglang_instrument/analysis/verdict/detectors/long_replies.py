"""Find replies far longer than usual: of a whole step, or a single one. Draws within the usual spread are none."""

import math
from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.effects import Limits, find_trend, shared_values, slow_steps, without_trend
from sglang_instrument.analysis.verdict.evidence import Evidence
from sglang_instrument.analysis.verdict.finding import Finding, seconds, step_name
from sglang_instrument.analysis.verdict.outliers import slow_single

_LIMITS: Final = Limits(times=1.5, spread=0.1)


def find_long_replies(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each step with longer replies, and for a reply that is longer than chance explains."""
    requests = evidence.digest.requests.filter(pl.col("response_tokens") > 0)
    if requests.is_empty():
        return
    rates = evidence.calls.filter(pl.col("kind") == "engine").group_by(*STEP_OF_WORKER, "request_id").agg(
        engine_sec=pl.col("usual_sec").sum()
    )
    requests = requests.drop("engine_sec").join(rates, on=[*STEP_OF_WORKER, "request_id"])
    yield from _steps(evidence, requests)
    yield from _single(evidence, requests)


def _steps(evidence: Evidence, requests: pl.DataFrame) -> Iterator[Finding]:
    groups = requests.group_by(STEP_OF_WORKER).agg(value=pl.col("response_tokens").median().log())
    shared = shared_values(groups, evidence.windows)
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
