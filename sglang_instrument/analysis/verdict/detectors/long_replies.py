"""Find replies that made a step long: longer than usual in the whole step, or a single one.

Some step always draws the longest reply. So those that chance explains are told last, as no fault.
"""

import math
from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence.chance import chance_beyond, chance_of_higher_ranks, tail_of
from sglang_instrument.analysis.verdict.evidence.detector import Findings, NamedCause, detector
from sglang_instrument.analysis.verdict.evidence.effects import (
    Limits,
    excess_of,
    step_effects,
)
from sglang_instrument.analysis.verdict.evidence.finding import Finding, place_of, seconds, where
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

LONG_REPLIES: Final = NamedCause(
    "long-replies",
    "step, request",
    "replies were at least 1.3 times as long as usual in a whole step, or one reply was longer than chance "
    'explains, or a step took 1.3 times the median one because some replies were long by chance (`"drawn": '
    "true` in the evidence)",
    "no fault: a limit of tokens or a partial rollout helps; `lengths LOGS`, `whatif LOGS`",
)
_LIMITS: Final = Limits(times=1.3, spread=0.03)
_FEWEST: Final = 40  # replies; with fewer, the tail of their lengths is not known
_CHANCE: Final = 3e-3  # largest allowed probability that the longest reply is drawn from the others
_CHANCE_OF_A_SHIFT: Final = 1e-3  # the same that a step's replies are, over all steps
_LEAST_SHIFT: Final = 1.1
_LONG: Final = 1.3  # times the median step, and a step gets a finding for its long replies
_MOST_OF_IT: Final = 0.5


@detector(LONG_REPLIES)
def find_long_replies(evidence: Evidence) -> Findings:
    """Yield a finding for each step with longer replies, and for a reply that chance does not explain."""
    if evidence.run is not None and not evidence.run.tells_requests:
        return
    engine = evidence.calls.filter(pl.col("kind") == "engine").group_by(*STEP_OF_WORKER, "request_id")
    requests = evidence.digest.requests.filter(pl.col("response_tokens") > 0).select(
        *STEP_OF_WORKER, "request_id", tokens=pl.col("response_tokens").cast(pl.Float64)
    )
    requests = requests.join(
        engine.agg(sec=pl.col("usual_sec").sum()), on=[*STEP_OF_WORKER, "request_id"], maintain_order="left"
    )
    if requests.is_empty():
        return
    kinds = requests.partition_by("validate")
    longest = [finding for kind in kinds for finding in _longest(evidence, kind)]
    findings = [*_long_steps(evidence, requests), *longest]
    yield from findings
    steps = {(finding.step, finding.validate) for finding in findings}
    for finding in _drawn(evidence, requests):
        if (finding.step, finding.validate) not in steps:
            yield finding


def _long_steps(evidence: Evidence, requests: pl.DataFrame) -> Iterator[Finding]:
    # Who draws which prompt is chance, so the replies of all workers count alike.
    lengths = requests.group_by(STEP).agg(value=pl.col("tokens").log().mean())
    slow = step_effects(lengths, evidence.windows, _LIMITS).slow
    if slow.is_empty():
        return
    late = excess_of(requests.join(slow.select(*STEP, "excess"), on=STEP))
    lost = evidence.worth(evidence.lost_in_requests(late)).join(slow, on=STEP)
    for row in lost.sort(STEP).iter_rows(named=True):
        times = math.exp(row["excess"])
        sentence = (
            f"{where(row)}: replies were {times:.1f} times as long as usual, which took "
            f"{seconds(row['lost_sec'])} more"
        )
        yield _finding("step", row, row["lost_sec"], sentence, {"times": times})


def _longest(evidence: Evidence, requests: pl.DataFrame) -> Iterator[Finding]:
    """Yield the longest of these replies, if the others make it unlikely."""
    row = requests.sort("tokens").row(-1, named=True)
    if len(requests) < _FEWEST:
        return
    others = tail_of(requests.sort("tokens").head(len(requests) - 1)["tokens"])
    if chance_beyond(others, row["tokens"]) > _CHANCE:
        return
    lost_sec = _saved(evidence, requests, row, others[0])
    if evidence.worth(pl.DataFrame([{**{key: row[key] for key in STEP}, "lost_sec": lost_sec}])).is_empty():
        return
    sentence = (
        f"{where(row)} wrote one reply of {row['tokens']:,.0f} tokens, the next longest of the run has "
        f"{others[0]:,.0f} (request {row['request_id']}); {seconds(lost_sec)} lost"
    )
    numbers = {"tokens": row["tokens"], "next_tokens": others[0]}
    yield _finding("request", row, lost_sec, sentence, numbers)


def _drawn(evidence: Evidence, requests: pl.DataFrame) -> Iterator[Finding]:
    """Yield a finding for each step that was long because of the replies that it drew."""
    long = _long_for_their_kind(evidence)
    if long.is_empty():
        return
    here = requests.join(long, on=STEP).join(_usual_lengths(requests, long), on=STEP, how="left")
    cut = 1 - pl.min_horizontal(
        pl.lit(1.0),
        pl.col("usual_longest") / pl.col("tokens"),
        pl.col("usual_mean") / pl.col("tokens").mean().over(STEP),
    )
    lost = evidence.lost_in_requests(here.with_columns(excess_sec=pl.col("sec") * cut))
    lost = evidence.worth(lost).join(long, on=STEP)
    over_sec = pl.col("busy_sec") - pl.col("usual_sec")
    long_steps = lost.filter(pl.col("lost_sec") >= _MOST_OF_IT * over_sec).select(*STEP, step_sec="lost_sec")
    longest = here.join(long_steps, on=STEP).sort("tokens").group_by(STEP, maintain_order=True).last()
    # All steps at once: a run may have thousands of them.
    cut = (1 - pl.col("usual_longest") / pl.col("tokens")).clip(lower_bound=0.0)
    alone = evidence.lost_in_requests(longest.with_columns(excess_sec=pl.col("sec") * cut))
    rows = longest.join(alone.rename({"lost_sec": "alone_sec"}), on=STEP, how="left")
    for row in rows.sort(STEP).iter_rows(named=True):
        times = _shift(requests, row)
        yield _drawn_finding(row) if times is None else _shifted_finding(row, times)


def _shift(requests: pl.DataFrame, row: dict[str, Any]) -> float | None:
    """Return how many times as long the replies of a step were as those of others; None if by chance.

    By Mann and Whitney's test of the replies' ranks; the factor is that of their geometric means.
    """
    here = (pl.col("step") == row["step"]) & (pl.col("validate") == row["validate"])
    replies = requests.filter(here)["tokens"]
    others = requests.filter(~here & (pl.col("validate") == row["validate"]))
    steps = 1 + others["step"].n_unique()
    times = math.exp(_mean(replies.log()) - _mean(others["tokens"].log()))
    if times < _LEAST_SHIFT:
        return None
    chance = chance_of_higher_ranks(replies, others["tokens"])
    return times if chance * steps < _CHANCE_OF_A_SHIFT else None


def _mean(values: pl.Series) -> float:
    mean: Any = values.mean()
    return float(mean or 0.0)


def _long_for_their_kind(evidence: Evidence) -> pl.DataFrame:
    """Return the steps that took far longer than the median one that ended, with their and its seconds."""
    ended = [(unfinished.step, unfinished.validate) for unfinished in evidence.unfinished]
    cut = pl.DataFrame(ended, schema={"step": pl.Int64, "validate": pl.Boolean}, orient="row")
    workers = evidence.workers.join(cut, on=STEP, how="anti")
    busy = workers.group_by(STEP).agg(pl.col("busy_sec").max())
    busy = busy.with_columns(usual_sec=pl.col("busy_sec").median().over("validate"))
    return busy.filter((pl.col("busy_sec") > _LONG * pl.col("usual_sec")) & (pl.len().over("validate") > 2))


def _usual_lengths(requests: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return for each step the medians, over all others, of the longest reply and of the mean reply."""
    lengths = requests.group_by(STEP).agg(longest=pl.col("tokens").max(), mean=pl.col("tokens").mean())
    usual = lengths.select(
        *STEP,
        usual_longest=_median_of_others(pl.col("longest")),
        usual_mean=_median_of_others(pl.col("mean")),
    )
    return usual.join(steps.select(STEP), on=STEP, how="semi")


def _median_of_others(value: pl.Expr) -> pl.Expr:
    """Return for each step the median over all others of its kind; null if there are none."""
    others = pl.len().cast(pl.Int64) - 1
    rank = value.rank("ordinal").cast(pl.Int64) - 1
    low, high = ((others - 1) // 2).clip(lower_bound=0), others // 2
    at_low, at_high = (
        pl.min_horizontal(middle_rank + (rank <= middle_rank), others) for middle_rank in (low, high)
    )
    middle = (value.sort().gather(at_low) + value.sort().gather(at_high)) / 2
    return pl.when(pl.len().over("validate") > 1).then(middle.over("validate"))


def _drawn_finding(row: dict[str, Any]) -> Finding:
    usual: float = row["usual_longest"]
    numbers = {"tokens": row["tokens"], "usual_longest": usual, "drawn": True}
    lost_sec, alone_sec = row["step_sec"], row["alone_sec"] or 0.0
    if alone_sec > _MOST_OF_IT * lost_sec:
        sentence = (
            f"{where(row)} drew the longest reply, {row['tokens']:,.0f} tokens where {usual:,.0f} are the "
            f"usual longest (request {row['request_id']}), which took {seconds(alone_sec)} more"
        )
        return _finding("request", row, alone_sec, sentence, numbers)
    place = {name: row[name] for name in STEP}
    sentence = f"{where(place)} had longer replies than most by chance; that cost {seconds(lost_sec)}"
    return _finding("step", place, lost_sec, sentence, numbers)


def _shifted_finding(row: dict[str, Any], times: float) -> Finding:
    place = {name: row[name] for name in STEP}
    sentence = (
        f"{where(place)}: replies were {times:.1f} times as long as in the other steps, which took "
        f"{seconds(row['step_sec'])} more"
    )
    return _finding("step", place, row["step_sec"], sentence, {"times": times})


def _saved(evidence: Evidence, requests: pl.DataFrame, row: dict[str, Any], tokens: float) -> float:
    """Return how much sooner the step would have ended with one reply cut to so many tokens."""
    mine = requests.filter(*(pl.col(name) == row[name] for name in (*STEP_OF_WORKER, "request_id")))
    cut = max(0.0, 1 - tokens / row["tokens"])
    lost = evidence.lost_in_requests(mine.with_columns(excess_sec=pl.col("sec") * cut))
    return float(lost["lost_sec"].sum())


def _finding(
    scope: Any, row: dict[str, Any], lost_sec: float, sentence: str, numbers: dict[str, Any]
) -> Finding:
    return Finding(
        cause=LONG_REPLIES.name,
        scope=scope,
        lost_sec=lost_sec,
        sentence=sentence,
        **place_of(row),
        event="engine",
        evidence=numbers,
    )
