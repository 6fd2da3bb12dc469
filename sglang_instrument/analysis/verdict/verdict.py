"""Say in one sentence what was wrong with a run, if anything was, and on what evidence.

Differences that chance explains are not reported: some worker always draws the longest replies. Findings
rest on what does not depend on lengths, and compare each step and worker with the others. Where a step took
long without any, the verdict says which parts of its ledger made the difference.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.ledger.deciding_paths import Paths
from sglang_instrument.analysis.verdict.advice import advice_of
from sglang_instrument.analysis.verdict.engine_logs import with_engine_logs
from sglang_instrument.analysis.verdict.evidence.deaths import UnfinishedStep
from sglang_instrument.analysis.verdict.evidence.finding import ENDINGS, SYMPTOMS, Finding, seconds, step_name
from sglang_instrument.analysis.verdict.evidence.last_words import did_last
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence
from sglang_instrument.analysis.verdict.excess import (
    BETWEEN,
    REST,
    SLOWER,
    SlowestStep,
    excess_table,
    slowest_step,
)
from sglang_instrument.analysis.verdict.overlaps import findings_in
from sglang_instrument.whole_commands import whole_commands

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_FAR: Final = 1.3  # times the median step
_FEWEST: Final = 4  # steps of workers; with fewer there is too little to compare
_FEWEST_TO_JUDGE: Final = 3  # steps; with fewer, no detector compares them
_MOST_OF_IT: Final = 0.5  # of the time above the median step: findings that cost less do not explain it
_LEAST_PART: Final = 0.1  # of the time above the median step: smaller parts are not named


@dataclass(frozen=True)
class Verdict:
    """What was out of the ordinary in a run, and what to look at next.

    Attributes:
        findings: The findings.
        sentence: What was out of the ordinary in words: the first finding, how the run ended, and why its
            slowest step was slow, each if there is something to say. A finding that cost no time comes last.
        advice: What to look at next, with the command; "" if there is nothing to look at.
        calm: Whether nothing was out of the ordinary, but for replies that chance made long.
    """

    findings: list[Finding]
    sentence: str
    advice: str
    calm: bool = False


def judge(run: "Run", over: bool | None = None, paths: Paths | None = None) -> Verdict:
    """Return all of the verdict; a command that needs several parts of it looks only once.

    Args:
        run: The run.
        over: As in `findings_of`.
        paths: As in `Evidence.of`.
    """
    evidence = Evidence.of(run, over, paths)
    findings = _with_whole_commands(with_engine_logs(run, _findings(evidence)), run)
    advice = findings[0].advice if findings else ""
    slowest = slowest_step(evidence.windows)
    sentences = [_ended(evidence, findings)]
    if slowest is not None and slowest.times >= _FAR and not _is_explained(slowest, findings):
        sentences.append(_slow(evidence, slowest, findings))
        parts = f"its parts: `summary LOGS --step {slowest.step}`"
        advice = advice or whole_commands(parts, run.logs)
    sentences = [words for words in sentences if words]
    if not findings:
        if sentences:
            return Verdict([], _joined(sentences), advice)
        return Verdict([], _calm(evidence), "", calm=slowest is not None)
    first = findings[0].sentence + _others(findings, evidence)
    if _has_cost(findings[0]):
        sentences.insert(0, first)
    elif sentences or not is_drawn(findings[0]):
        sentences.append(first)
    else:
        return Verdict(findings, f"nothing out of the ordinary; {first}", advice, calm=True)
    return Verdict(findings, _joined(sentences), advice)


def findings_of(run: "Run", over: bool | None = None) -> list[Finding]:
    """Return everything out of the ordinary in a run: hangs and deaths first, then by the time lost.

    Args:
        run: The run.
        over: Whether the run is over, default `run.is_over`; in a run that goes on, no worker counts as dead.
    """
    return judge(run, over).findings


def verdict_of(run: "Run", over: bool | None = None) -> str:
    """Return one sentence: what cost most time, or that nothing is out of the ordinary.

    Args:
        run: The run.
        over: As in `findings_of`.
    """
    return judge(run, over).sentence


def _ended(evidence: Evidence, findings: list[Finding]) -> str:
    """Return what to say of a run that ended in the middle of a step for no reason that a finding names."""
    named = {(finding.step, finding.validate) for finding in findings if finding.cause in ENDINGS}
    ended = [
        unfinished
        for unfinished in evidence.unfinished
        if (unfinished.step, unfinished.validate) not in named
    ]
    if not ended or ended[0].worker is not None or not evidence.over:
        return ""
    last = step_name(ended[0].step, ended[0].validate)
    if len(ended[0].last_us) == 1:
        (worker,) = ended[0].last_us
        last_act = did_last(evidence, ended[0].step, ended[0].validate, worker)
        return f"the run ended in {last}{f', {last_act}' if last_act else ''}"
    words = f"the run ended in {last}, and the log does not show which worker was the cause: "
    return f"{words}none stopped logging long before the others{_absent(evidence.digest, ended[0])}"


def _findings(evidence: Evidence) -> list[Finding]:
    ordered = in_order_of_weight(findings_in(evidence))
    return [replace(finding, advice=finding.advice or advice_of(finding)) for finding in ordered]


def _with_whole_commands(findings: list[Finding], run: "Run") -> list[Finding]:
    return [replace(finding, advice=whole_commands(finding.advice, run.logs)) for finding in findings]


def in_order_of_weight(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings in the order in which they are told: hangs and deaths, then by the time lost."""
    ordered = list(findings)
    endings = [finding for finding in ordered if finding.cause in ENDINGS]
    rest = [finding for finding in ordered if finding.cause not in ENDINGS]
    return [*endings, *sorted(rest, key=_weight)]


def _has_cost(finding: Finding) -> bool:
    """Return whether a finding comes first: a hang, a death, or a fault that took time."""
    return finding.cause in ENDINGS or (finding.lost_sec > 0 and not is_drawn(finding))


def is_drawn(finding: Finding) -> bool:
    """Return whether it tells of replies that chance made long, which are no fault."""
    return bool(finding.evidence.get("drawn", False))


def _weight(finding: Finding) -> tuple[bool, bool, float]:
    """Return what findings are sorted by: causes come before their symptom, that a side of the loop waits."""
    return is_drawn(finding), finding.cause in SYMPTOMS, -_lost_in_all(finding)


def _lost_in_all(finding: Finding) -> float:
    """Return what a finding cost over the run: one of several steps says what each of them lost."""
    return finding.lost_sec * (finding.evidence.get("steps", 1) if finding.step is None else 1)


def _others(findings: list[Finding], evidence: Evidence) -> str:
    """Return in how many steps the first finding is found again, and how many others there are."""
    first, rest = findings[0], findings[1:]
    alike = [
        finding
        for finding in rest
        if (finding.cause, finding.worker, finding.event) == (first.cause, first.worker, first.event)
    ]
    words = []
    if first.step is not None and alike:
        steps = len({(finding.step, finding.validate) for finding in (first, *alike)})
        who = f"worker {first.worker}" if first.worker is not None else first.cause
        words.append(f"{who} in {steps} of {len(evidence.windows)} steps")
    others = len(rest) - len(alike)
    if others:
        words.append(f"{others} other finding{'s' if others > 1 else ''}")
    return f" ({'; '.join(words)})" if words else ""


def _joined(sentences: list[str]) -> str:
    return ". ".join([sentences[0], *(words[0].upper() + words[1:] for words in sentences[1:])])


def _is_explained(slowest: SlowestStep, findings: list[Finding]) -> bool:
    """Return whether the findings cost at least half of what the slowest step took more than the median."""
    lost = sum(finding.lost_sec for finding in findings if _costs(finding, slowest))
    return lost >= _MOST_OF_IT * (slowest.sec - slowest.usual_sec)


def _costs(finding: Finding, slowest: SlowestStep) -> bool:
    """Return whether a finding lengthened the slowest step. Those of the run concern all steps."""
    if BETWEEN in (finding.cause.replace("-", " "), finding.event) and not slowest.until_next:
        return False
    return finding.step is None or (finding.step, finding.validate) == (slowest.step, False)


def _slow(evidence: Evidence, slowest: SlowestStep, findings: list[Finding]) -> str:
    """Return which parts of its ledger made the slowest step slow."""
    until = " until the next began" if slowest.until_next else ""
    took = f"step {slowest.step}, the slowest, took {seconds(slowest.sec)}{until}"
    words = f"{took}, {slowest.times:.1f} times the median step: "
    return words + _difference(evidence, slowest, findings) + _too_little(evidence)


def _difference(evidence: Evidence, slowest: SlowestStep, findings: list[Finding]) -> str:
    table = excess_table(evidence.paths, evidence.calls, slowest.step, until_next=slowest.until_next).filter(
        pl.col("part") != REST
    )
    least = max(_LEAST_PART * (slowest.sec - slowest.usual_sec), 0.0)
    largest = table.filter(pl.col("excess_sec") > least).head(3)
    names = [f"{seconds(row['excess_sec'])} {_in(row['part'])}" for row in largest.iter_rows(named=True)]
    words = ", ".join(names) or "no part of it stands out"
    known = len(evidence.windows) >= _FEWEST_TO_JUDGE and not findings
    if not known or SLOWER & set(largest["part"]):
        return words
    return f"{words}; no call was slow for its kind"


def _in(part: str) -> str:
    """Return "more in engine", "more between steps", "in more tool calls"."""
    return (
        f"more {part}" if part == BETWEEN else f"in {part}" if part.startswith("more ") else f"more in {part}"
    )


def _calm(evidence: Evidence) -> str:
    """Return what to say of a run in which nothing was out of the ordinary."""
    steps = evidence.windows.filter(~pl.col("validate"))
    if steps.is_empty():
        if evidence.digest.steps.is_empty() and any(file.folder == "engine" for file in evidence.files):
            return "none, for only the engine's processes logged, and they know no steps"
        return "no training step is complete yet"
    steps = steps.with_columns(sec=(pl.col("done_us") - pl.col("begin_us")) / 1e6)
    slowest = steps.sort("sec").row(-1, named=True)
    took = f"step {slowest['step']}, the slowest, took {seconds(slowest['sec'])}"
    longest = _longest(evidence.digest, slowest["step"])
    return f"nothing out of the ordinary; {took}{longest}{_too_little(evidence)}"


def _longest(digest: Digest, step: int) -> str:
    longest: Any = digest.requests.filter(step=step, validate=False)["duration_sec"].max()
    return f", of which the longest request took {seconds(longest)}" if longest else ""


def _too_little(evidence: Evidence) -> str:
    steps, workers = len(evidence.windows), evidence.workers["worker"].n_unique()
    if len(evidence.workers) >= _FEWEST and steps >= _FEWEST:
        return "" if workers > 1 else " (one worker: no peers to compare with)"
    return f" ({_count(steps, 'step')} of {_count(workers, 'worker')}: too little to compare)"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _absent(digest: Digest, unfinished: UnfinishedStep) -> str:
    """Return a clause that names workers without any record in the step that never ended."""
    known: Iterable[int] = set(digest.steps.filter(validate=unfinished.validate)["worker"].drop_nulls())
    absent = sorted(set(known) - unfinished.done.keys())
    if not absent:
        return ""
    kind = "worker" if len(absent) == 1 else "workers"
    return f"; {kind} {', '.join(map(str, absent))} wrote nothing in it"
