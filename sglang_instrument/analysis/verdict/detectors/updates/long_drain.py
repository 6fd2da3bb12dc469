"""Find updates of the weights that waited far longer than the others for calls to end, and for which call."""

from statistics import median
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.weights.served import CALLS
from sglang_instrument.analysis.answers.weights.updates import updates_of
from sglang_instrument.analysis.verdict.evidence.detector import Findings, NamedCause, detector
from sglang_instrument.analysis.verdict.evidence.effects import floor_of
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds, step_name
from sglang_instrument.analysis.verdict.evidence.run_evidence import LEAST_SEC, OF_STEP, Evidence

LONG_DRAIN: Final = NamedCause(
    "long-drain",
    "step",
    "an update of the weights waited for running calls at least three times as long as any other update of "
    "the run. The call that ended last is named",
    "let updates abort what runs and resume it under the new weights, or cap replies: `weights LOGS`, "
    "`lengths LOGS --caps`",
    not_planted="`sglang_instrument.testing.world` plants it",
)
_TIMES: Final = 3.0  # times the longest of the others
_BEYOND: Final = 3.0  # times the tokens of the longest other call
_FEWEST: Final = 4  # updates


@detector(LONG_DRAIN)
def find_long_drains(evidence: Evidence) -> Findings:
    """Yield a finding for each update that waited far longer than all others for its drain.

    The physical fact: no server had the new weights while a call ran on, and new calls waited for it.
    """
    if evidence.run is None or evidence.weight_spans.filter(part="drain").is_empty():
        return
    updates = updates_of(evidence.weight_spans, pl.DataFrame(schema=CALLS))
    drained = [(row["drain_sec"] or 0.0, row) for row in updates if row["step"] is not None]
    if len(drained) < _FEWEST:
        return
    floor_sec = floor_of(evidence.windows)
    (sec, longest), *others = sorted(drained, key=lambda pair: -pair[0])
    usual_sec = median(other_sec for other_sec, _ in others)
    lost_sec = sec - usual_sec
    if sec < _TIMES * (others[0][0] + floor_sec) or lost_sec < _worth(evidence):
        return
    call = _last_call(evidence, longest)
    if call is not None and not _is_beyond(
        evidence, call
    ):  # some update waits for the longest of usual replies
        return
    which = f" for the call of {call['completion_tokens']:,} tokens at {call['server']}" if call else ""
    sentence = (
        f"{step_name(longest['step'], False)}: the update of the weights waited {seconds(sec)}{which} "
        f"to end, where {seconds(usual_sec)} are usual; {seconds(lost_sec)} lost"
    )
    numbers: dict[str, Any] = {"update": longest["update"], "sec": sec, "usual_sec": usual_sec}
    if call:
        numbers |= {"tokens": call["completion_tokens"], "request_id": call["request_id"]}
    yield Finding(
        LONG_DRAIN.name, "step", lost_sec, sentence, step=longest["step"], event="drain", evidence=numbers
    )


def _worth(evidence: Evidence) -> float:
    """Return the fewest lost seconds that matter, by the median step."""
    took = evidence.windows.filter(~pl.col("validate")).select(pl.col("done_us") - pl.col("begin_us"))
    middle: Any = took.to_series().median() or 0.0
    return max(LEAST_SEC, OF_STEP * float(middle) / 1e6)


def _is_beyond(evidence: Evidence, call: dict[str, Any]) -> bool:
    """Return whether a call wrote far more tokens than any other request's call."""
    others = evidence.served.filter(pl.col("request_id") != call["request_id"])["completion_tokens"]
    most: Any = others.max() or 0
    return bool(call["completion_tokens"] > _BEYOND * most)


def _last_call(evidence: Evidence, update: dict[str, Any]) -> dict[str, Any] | None:
    """Return the call that ended last of those that had begun before an update, None if none is known."""
    known = evidence.served.drop_nulls(["server", "completion_tokens"])
    begun = known.filter(pl.col("start_us") < update["start_us"], pl.col("end_us") > update["start_us"])
    return None if begun.is_empty() else begun.sort("end_us").row(-1, named=True)
