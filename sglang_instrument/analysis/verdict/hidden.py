"""Find causes behind others: the step waited longer for something else, and would have waited for them.

What the findings explain is taken out of the calls, the requests and the workers' times, and the detectors
look once more.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Final

import polars as pl

from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.ledger.ledger import STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence.detector import Explained
from sglang_instrument.analysis.verdict.evidence.finding import ENDINGS, SYMPTOMS, Finding
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

_MOST_CALLS: Final = 200_000  # of larger runs, a second look would double the time of the first
_DELAY: Final = {
    "step": pl.Int64,
    "validate": pl.Boolean,
    "worker": pl.Int64,
    "request_id": pl.String,
    "excess_sec": pl.Float64,
}

Answers = Sequence[Finding | Explained]
Look = Callable[[Evidence], list[Finding | Explained]]


def hidden_findings(evidence: Evidence, answers: Answers, look: Look) -> list[Finding]:
    """Return the findings that others hide, with no `lost_sec`: mended alone, they would save nothing.

    Where requests flow, no request decides alone when a step ends, and none hides another.

    Args:
        evidence: The evidence.
        answers: What the detectors found in it.
        look: Lets them look.
    """
    findings = [answer.finding if isinstance(answer, Explained) else answer for answer in answers]
    named = [finding for finding in findings if finding.lost_sec > 0 and finding.step is not None]
    if not named or evidence.flows or len(evidence.calls) > _MOST_CALLS:
        return []
    rest = _mended(evidence, answers)
    steps = {(finding.step, finding.validate) for finding in named}
    hidden = []
    for answer in look(rest):
        finding = answer.finding if isinstance(answer, Explained) else answer
        if (
            finding.lost_sec > 0
            and finding.cause not in (*ENDINGS, *SYMPTOMS)
            and not finding.evidence.get("drawn")
            and (finding.step is None or (finding.step, finding.validate) in steps)
            and not any(_alike(finding, known) for known in findings)
        ):
            hidden.append(
                replace(
                    finding,
                    lost_sec=0.0,
                    sentence=f"{finding.sentence}, behind what took longer",
                    evidence={**finding.evidence, "hidden_sec": finding.lost_sec},
                )
            )
    return hidden


def _alike(finding: Finding, known: Finding) -> bool:
    """Return whether two findings say the same of one place, or of a place and of a part of it."""
    pairs = (finding.step, known.step), (finding.worker, known.worker)
    return finding.cause == known.cause and all(None in pair or len(set(pair)) == 1 for pair in pairs)


def _mended(evidence: Evidence, answers: Answers) -> Evidence:
    """Return the evidence as if what was found had not happened."""
    explained = [answer.calls for answer in answers if isinstance(answer, Explained) and len(answer.calls)]
    rest = copy(evidence.without(explained))
    delays = [calls.select("row", "excess_sec").drop_nulls() for calls in explained]
    rows = evidence.calls.select("row", *STEP_OF_WORKER, "request_id")
    in_requests = [rows.join(delay, on="row").select(list(_DELAY)) for delay in delays]
    others = [answer for answer in answers if isinstance(answer, Finding) and answer.lost_sec > 0]
    outside = pl.concat([pl.DataFrame(schema=_DELAY), *(_outside(evidence, finding) for finding in others)])
    requests = pl.concat([outside.drop_nulls("request_id"), *in_requests])
    late = evidence.late_by_requests(requests)
    late = pl.concat([late, outside.filter(pl.col("request_id").is_null()).select(late.columns)])
    late = late.group_by(STEP_OF_WORKER).agg(pl.col("excess_sec").sum())
    busy = pl.col("busy_sec") - pl.col("excess_sec").fill_null(0.0)
    workers = evidence.workers.join(late, on=STEP_OF_WORKER, how="left", maintain_order="left")
    vars(rest)["workers"] = workers.with_columns(busy_sec=busy.clip(lower_bound=0.0)).drop("excess_sec")
    rest.digest = _sooner(evidence.digest, requests)
    return rest


def _outside(evidence: Evidence, finding: Finding) -> pl.DataFrame:
    """Return the delay of a finding that explains no calls: of a request, a worker, or all of a step."""
    if finding.step is None:
        return pl.DataFrame(schema=_DELAY)
    workers = evidence.workers.filter(step=finding.step, validate=finding.validate)
    if finding.worker is not None:
        workers = workers.filter(worker=finding.worker)
    numbers = finding.evidence
    took = float(numbers["sec"] - numbers["usual_sec"]) if {"sec", "usual_sec"} <= numbers.keys() else 0.0
    return workers.select(
        *STEP_OF_WORKER,
        request_id=pl.lit(finding.request_id, pl.String),
        excess_sec=pl.lit(max(finding.lost_sec, took)),
    )


def _sooner(digest: Digest, delays: pl.DataFrame) -> Digest:
    """Return a digest whose requests end as much sooner as they were delayed."""
    key = [*STEP_OF_WORKER, "request_id"]
    late = delays.group_by(key).agg(pl.col("excess_sec").sum())
    requests = digest.requests.join(late, on=key, how="left", maintain_order="left")
    sec = pl.min_horizontal(pl.col("excess_sec").fill_null(0.0), pl.col("duration_sec").fill_null(0.0))
    requests = requests.with_columns(
        end_us=pl.col("end_us") - (sec * 1e6).cast(pl.Int64), duration_sec=pl.col("duration_sec") - sec
    )
    return Digest(**{**digest.tables(), "requests": requests.drop("excess_sec")})
