"""Find replies that made a step long: longer than usual in the whole step, or a single one.

Some step always draws the longest reply. So what chance explains is told last, as no fault, and of the run:
nobody and no step is the cause of a draw.
"""

import math
from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence.chance import chance_beyond, chance_of_higher_ranks, tail_of
from sglang_instrument.analysis.verdict.evidence.detector import Findings, NamedCause, detector
from sglang_instrument.analysis.verdict.evidence.effects import (
    Effects,
    Limits,
    excess_of,
    median_of_others,
    step_effects,
)
from sglang_instrument.analysis.verdict.evidence.finding import Finding, place_of, seconds, where
from sglang_instrument.analysis.verdict.evidence.reply_lengths import (
    LENGTHS,
    alike_replies,
    compared_lengths,
    replies_of,
)
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence
from sglang_instrument.analysis.verdict.evidence.shorter_reply import saved_by_cut

LONG_REPLIES: Final = NamedCause(
    "long-replies",
    "step, worker, request, run",
    "replies were at least 1.3 times as long as usual in a whole step, in all from one on, or of a worker in "
    "a step, or one was longer than chance explains, or steps took 1.3 times the median one because some "
    'replies were long by chance (`"drawn": true` in the evidence; that is said of the run)',
    "no fault: a limit of tokens or a partial rollout helps; `lengths LOGS`, `whatif LOGS`",
)
_LIMITS: Final = Limits(times=1.3, spread=0.03)
_FEWEST: Final = 40  # replies; with fewer, the tail of their lengths is not known
_CHANCE: Final = 3e-3  # largest allowed probability that the longest reply is drawn from the others
_CHANCE_OF_A_SHIFT: Final = 1e-3  # the same that a step's replies are, over all steps
_CHANCE_OF_A_WORKER: Final = 2e-4  # of a few prompts it is known only roughly how far their lengths scatter
_FEW_WORKERS: Final = 2  # of steps: each has only one other to be compared with
_LEAST_SHIFT: Final = 1.1
_LONG: Final = 1.3  # times the median step, and a step gets a finding for its long replies
_MOST_OF_IT: Final = 0.5


@detector(LONG_REPLIES)
def find_long_replies(evidence: Evidence) -> Findings:
    """Yield a finding for each step with longer replies, and for a reply that chance does not explain."""
    if evidence.run is not None and not evidence.run.tells_requests:
        return
    requests = replies_of(evidence)
    if requests.is_empty():
        return
    kinds = requests.partition_by("validate")
    longest = [finding for kind in kinds for finding in _longest(evidence, kind)]
    steps_alike, workers = list(_long_steps(evidence, requests)), list(_long_workers(evidence, requests))
    alone = [finding for finding in workers if _others_are_usual(requests, finding)]
    of_one = {(finding.step, finding.validate) for finding in alone}
    findings = [
        *(finding for finding in steps_alike if (finding.step, finding.validate) not in of_one),
        *longest,
    ]
    long_steps = {(finding.step, finding.validate) for finding in findings}
    findings += [finding for finding in workers if (finding.step, finding.validate) not in long_steps]
    yield from findings
    steps = {(finding.step, finding.validate) for finding in findings}
    shifted = _shifted(requests)
    drawn = []
    for row in _long_draws(evidence, requests):
        place = (row["step"], row["validate"])
        if place in steps:
            continue
        if place in shifted:
            yield _shifted_finding(row, shifted[place])
        else:
            drawn.append(row)
    if drawn:
        yield _drawn_finding(drawn)


def _long_steps(evidence: Evidence, requests: pl.DataFrame) -> Iterator[Finding]:
    # Who draws which prompt is chance, so the replies of all workers count alike.
    lengths = requests.group_by(STEP).agg(value=pl.col("of_turn").log().mean())
    effects = step_effects(lengths, evidence.windows, _LIMITS)
    if effects.shift is not None:
        yield from _from_a_step_on(evidence, requests, effects)
    slow = effects.slow
    if slow.is_empty():
        return
    slow = slow.join(_no_draws(requests), on=STEP, how="semi", maintain_order="left")
    late = excess_of(requests.join(slow.select(*STEP, "excess"), on=STEP))
    lost = evidence.worth(evidence.lost_in_requests(late)).join(slow, on=STEP)
    for row in lost.sort(STEP).iter_rows(named=True):
        times = math.exp(row["excess"])
        sentence = (
            f"{where(row)}: replies were {times:.1f} times as long as usual, which took "
            f"{seconds(row['lost_sec'])} more"
        )
        yield _finding("step", row, row["lost_sec"], sentence, {"times": times})


def _no_draws(requests: pl.DataFrame) -> pl.DataFrame:
    """Return the steps whose replies chance does not draw from those of the others."""
    cells = compared_lengths(requests, STEP)
    return cells.filter(pl.col("chance") * pl.len().over("validate") <= _CHANCE_OF_A_SHIFT).select(STEP)


def _from_a_step_on(evidence: Evidence, requests: pl.DataFrame, effects: Effects) -> Iterator[Finding]:
    """Yield a finding if all steps from one on have longer replies than all before, and take longer by it."""
    shift = effects.shift
    if shift is None:
        return
    later = requests.join(effects.flat.filter(pl.col("growth") > 0).select(*STEP, "growth"), on=STEP)
    before = requests.filter(~pl.col("validate")).join(later, on=STEP, how="anti")
    chance = chance_of_higher_ranks(later["of_turn"], before["of_turn"], alike_replies(requests))
    lost = evidence.worth(evidence.lost_in_requests_or_flow(excess_of(later, "growth")))
    if lost.is_empty() or chance * len(effects.flat) > _CHANCE_OF_A_SHIFT:
        return
    lost_sec = float(lost["lost_sec"].sum()) / shift.steps
    sentence = (
        f"from step {shift.step} on, replies were {shift.times:.1f} times as long as before, which took "
        f"{seconds(lost_sec)} more a step"
    )
    numbers = {"times": shift.times, "first_step": shift.step, "steps": shift.steps}
    yield Finding(LONG_REPLIES.name, "run", lost_sec, sentence, event="engine", evidence=numbers)


def _long_workers(evidence: Evidence, requests: pl.DataFrame) -> Iterator[Finding]:
    """Yield the workers whose replies in a step were longer than those of the others there and elsewhere."""
    cells = compared_lengths(requests, STEP_OF_WORKER)
    if len(cells) <= _FEW_WORKERS:
        return
    is_long = (pl.col("others") >= _FEWEST) & (pl.col("times") >= _LIMITS.times)
    is_no_draw = pl.col("chance") * len(cells) <= _CHANCE_OF_A_WORKER
    for row in cells.filter(is_long & is_no_draw).iter_rows(named=True):
        times = row["times"]
        part = requests.filter(pl.all_horizontal(pl.col(name) == row[name] for name in STEP_OF_WORKER))
        late = part.with_columns(excess_sec=pl.col("sec") * (1 - 1 / times)).drop_nulls("excess_sec")
        lost = evidence.worth(evidence.lost_by_each(evidence.late_by_requests(late)))
        for lost_sec in lost["lost_sec"]:
            sentence = (
                f"{where(row)}: its replies were {times:.1f} times as long as those of the others, which "
                f"took {seconds(lost_sec)} more"
            )
            place = {name: row[name] for name in STEP_OF_WORKER}
            yield _finding("worker", place, lost_sec, sentence, {"times": times})


def _others_are_usual(requests: pl.DataFrame, of_worker: Finding) -> bool:
    """Return whether the replies of a step are as usual without those of a worker whose replies are long.

    The logarithm of their length must be nearer to that of other steps than to the worker's.
    """
    place = (pl.col("step") == of_worker.step) & (pl.col("validate") == of_worker.validate)
    logs = requests.select(log=pl.col("of_turn").log(), here=place, mine=pl.col("worker") == of_worker.worker)
    others = logs.filter(pl.col("here") & ~pl.col("mine"))["log"]
    elsewhere = requests.filter(~place & (pl.col("validate") == of_worker.validate))["of_turn"].log()
    if others.is_empty() or elsewhere.is_empty():
        return False
    return _mean(others) - _mean(elsewhere) < math.log(of_worker.evidence["times"]) / 2


def _longest(evidence: Evidence, requests: pl.DataFrame) -> Iterator[Finding]:
    """Yield the longest of these replies, if the others make it unlikely: of all, or of a turn."""
    if len(requests) < _FEWEST:
        return
    for length in LENGTHS:  # many turns make long replies of another kind
        order = requests.select(length, pl.col("tokens").alias("of_all"), row=pl.int_range(pl.len()))
        order = order.sort(length, "of_all")
        row = requests.row(order["row"][-1], named=True)
        others = tail_of(order[length].head(len(requests) - 1))
        if chance_beyond(others, row[length]) * len(LENGTHS) <= _CHANCE:
            yield from _of_longest(evidence, requests, row, length, others[0])
            return


def _of_longest(
    evidence: Evidence, requests: pl.DataFrame, row: dict[str, Any], length: str, next_longest: float
) -> Iterator[Finding]:
    if length == "in_turn":
        tokens, next_tokens, rest = row[length], next_longest, row["tokens"] - row[length]
    else:
        tokens, next_tokens, rest = row["tokens"], next_longest * row["tokens"] / row[length], 0.0
    lost_sec = saved_by_cut(evidence, requests, row, rest + next_tokens)
    outcome = f"{seconds(lost_sec)} lost"
    if not _is_worth(evidence, row, lost_sec):
        # Behind a request that something else made longer: its own time is told, and no loss.
        if not _is_worth(evidence, row, (row["sec"] or 0.0) * (tokens - next_tokens) / row["tokens"]):
            return
        lost_sec, outcome = 0.0, "other requests took even longer"
    sentence = (
        f"{where(row)} wrote one reply of {tokens:,.0f} tokens, the next longest of the run "
        f"{'for as many turns ' if length == 'of_turn' else ''}has {next_tokens:,.0f} "
        f"(request {row['request_id']}); {outcome}"
    )
    numbers = {"tokens": tokens, "next_tokens": next_tokens}
    yield _finding("request", row, lost_sec, sentence, numbers)


def _is_worth(evidence: Evidence, row: dict[str, Any], sec: float) -> bool:
    """Return whether seconds are worth a finding in the step of a row."""
    lost = pl.DataFrame([{**{key: row[key] for key in STEP}, "lost_sec": sec}])
    return not evidence.worth(lost).is_empty()


def _long_draws(evidence: Evidence, requests: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the steps that were long because of the replies that they drew, each with its longest reply."""
    long = _long_for_their_kind(evidence)
    if long.is_empty():
        return []
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
    return longest.sort(STEP).to_dicts()


def _shifted(requests: pl.DataFrame) -> dict[tuple[int, bool], float]:
    """Return the steps whose replies were longer than chance draws them, and how many times as long."""
    cells = compared_lengths(requests, STEP).with_columns(steps=pl.len().over("validate"))
    no_draw = pl.col("chance") * pl.col("steps") < _CHANCE_OF_A_SHIFT
    rows = cells.filter((pl.col("times") >= _LEAST_SHIFT) & no_draw).select(*STEP, "times").iter_rows()
    return {(step, validate): times for step, validate, times in rows}


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
        usual_longest=median_of_others("longest", ["validate"]),
        usual_mean=median_of_others("mean", ["validate"]),
    )
    return usual.join(steps.select(STEP), on=STEP, how="semi")


def _drawn_finding(rows: list[dict[str, Any]]) -> Finding:
    """Return what chance did to a run: how many steps drew long replies, and what they took at most."""
    worst = max(rows, key=lambda row: float(row["step_sec"]))
    lost_sec = float(worst["step_sec"])
    steps = f"{len(rows)} steps" if len(rows) > 1 else "a step"
    most = "up to " if len(rows) > 1 else ""
    sentence = (
        f"{steps} drew longer replies than most by chance, up to {worst['tokens']:,.0f} tokens where "
        f"{worst['usual_longest']:,.0f} are the usual longest; that took {most}{seconds(lost_sec)} more"
    )
    numbers = {
        "drawn": True,
        "tokens": worst["tokens"],
        "usual_longest": worst["usual_longest"],
        "drawn_steps": [row["step"] for row in rows],
        "longest": {name: worst[name] for name in ("step", "worker", "request_id")},
    }
    return Finding(LONG_REPLIES.name, "run", lost_sec, sentence, event="engine", evidence=numbers)


def _shifted_finding(row: dict[str, Any], times: float) -> Finding:
    place = {name: row[name] for name in STEP}
    sentence = (
        f"{where(place)}: replies were {times:.1f} times as long as in the other steps, which took "
        f"{seconds(row['step_sec'])} more"
    )
    return _finding("step", place, row["step_sec"], sentence, {"times": times})


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
