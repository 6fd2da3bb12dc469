"""Find what kept a step from ending: a span that never ended, a worker that died."""

from collections.abc import Iterator
from typing import Any, Final

from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.reading.last_open import place_of, spoken
from sglang_instrument.analysis.verdict.evidence.deaths import UnfinishedStep
from sglang_instrument.analysis.verdict.evidence.detector import Findings, NamedCause, detector
from sglang_instrument.analysis.verdict.evidence.finding import Finding, step_name
from sglang_instrument.analysis.verdict.evidence.hangs import find_hangs
from sglang_instrument.analysis.verdict.evidence.last_words import did_last
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

HANG: Final = NamedCause(
    "hang",
    "worker",
    "a step has no closing record, and its last `open_spans` names what was open for more than twice the "
    "longest of its phase in the run. If all reported workers merely wait, the worker that did not come is "
    "named",
    "the stack in its last open_spans record says where it waits: `check LOGS`",
)
DEATH: Final = NamedCause(
    "death",
    "worker",
    "the run is over in a step that was not closed, and the silence of a worker is "
    "[more than chance](#a-worker-that-died)",
    "look at that worker's own output and the host's kernel log (out of memory?); `check LOGS` lists its "
    "last records",
)


@detector(HANG, DEATH)
def find_endings(evidence: Evidence) -> Findings:
    """Yield hangs and deaths. Workers that wait at a barrier are named only if nobody else is."""
    hangs = _hangs(evidence)
    at_work = [hang for hang in hangs if not hang.evidence["waits"]]
    if at_work:
        yield from at_work
        return
    deaths = list(_deaths(evidence)) if evidence.over else []
    yield from deaths or _waited_for(evidence.digest, hangs)


def _hangs(evidence: Evidence) -> list[Finding]:
    """Find spans that were open for longer than any before; workers that only wait come last."""
    findings = []
    for hang in sorted(find_hangs(evidence.digest, evidence.files), key=lambda open_hang: open_hang.waits):
        place = hang.file.place
        if place is None or place.step is None:
            continue
        inner, outer = hang.spans[0], hang.spans[-1]
        inner_sec, outer_sec = (float(span.get("age_sec") or 0.0) for span in (inner, outer))
        where = f"{step_name(place.step, place.validate)}: worker {place.worker}"
        did = "blocked its event loop" if hang.blocks_loop else "was open"
        sentence = f"{where} never ended; {spoken(inner)} {did} for {inner_sec:.0f} s{_at(inner)}"
        numbers = {"spans": hang.spans, "waits": hang.waits}
        findings.append(
            _hang(place.step, place.validate, place.worker, outer_sec, sentence, numbers, inner.get("event"))
        )
    return findings


def _at(span: dict[str, Any]) -> str:
    place = place_of(span)
    return "" if place is None else f", at {place}"


def _hang(
    step: int,
    validate: bool,
    worker: int | None,
    lost_sec: float,
    sentence: str,
    numbers: dict[str, Any],
    event: str | None = None,
) -> Finding:
    return Finding(
        cause=HANG.name,
        scope="worker",
        lost_sec=lost_sec,
        sentence=sentence,
        step=step,
        validate=validate,
        worker=worker,
        event=event,
        evidence=numbers,
    )


def _waited_for(digest: Digest, waits: list[Finding]) -> list[Finding]:
    """Return the workers for which others wait; if no worker is missing, those that wait."""
    waiting: dict[tuple[int | None, bool], list[Finding]] = {}
    for hang in waits:
        waiting.setdefault((hang.step, hang.validate), []).append(hang)
    findings = []
    for (step, validate), hangs in waiting.items():
        if step is None:
            continue
        everyone = set(digest.steps.filter(step=step, validate=validate)["worker"])
        for worker in sorted(everyone - {hang.worker for hang in hangs}):
            lost = max(hang.lost_sec for hang in hangs)
            others = "another worker" if len(hangs) == 1 else f"{len(hangs)} other workers"
            sentence = (
                f"{step_name(step, validate)}: worker {worker} kept {others} waiting; after {lost:.0f} s "
                "the step had not ended"
            )
            spans = [span for hang in hangs for span in hang.evidence["spans"]]
            findings.append(_hang(step, validate, worker, lost, sentence, {"spans": spans, "waits": False}))
    return findings or waits


def _deaths(evidence: Evidence) -> Iterator[Finding]:
    """Yield the worker that stopped logging first in the step in which the run ended."""
    for unfinished in evidence.unfinished:
        if unfinished.worker is None:
            continue
        workers = [
            {"worker": worker, "requests": count, "last_us": unfinished.last_us[worker]}
            for worker, count in unfinished.done.items()
        ]
        where = f"{step_name(unfinished.step, unfinished.validate)}: worker {unfinished.worker}"
        last = did_last(evidence, unfinished.step, unfinished.validate, unfinished.worker)
        sentence = (
            f"{where} {_end_of(unfinished, unfinished.done[unfinished.worker])}{f'; {last}' if last else ''}"
        )
        numbers = {"ahead_sec": unfinished.ahead_sec, "workers": workers}
        yield Finding(
            DEATH.name,
            "worker",
            0.0,
            sentence,
            unfinished.step,
            unfinished.validate,
            unfinished.worker,
            evidence=numbers,
        )


def _end_of(unfinished: UnfinishedStep, done: int) -> str:
    """Return the words about the worker that died in a step."""
    counts = unfinished.done.items()
    others = max((count for worker, count in counts if worker != unfinished.worker), default=0)
    if unfinished.is_alone:
        return (
            "was the only one with requests left when the run ended: "
            f"it had completed {done} requests, the others {others}"
        )
    words = "was the first to stop logging in this step, which never ended"
    if unfinished.ahead_sec is None:
        return words
    return (
        f"{words}: others logged for {unfinished.ahead_sec:.1f} s more; "
        f"it had completed {done} requests (others up to {others})"
    )
