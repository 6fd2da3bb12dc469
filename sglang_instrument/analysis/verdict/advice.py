"""Say for a finding what to look at next, with the command: the advice of its cause, for its place."""

from shlex import quote
from typing import Final

from sglang_instrument.analysis.verdict.detectors import CAUSES
from sglang_instrument.analysis.verdict.detectors.calls.slow_work import LOOK_AT_ENGINE
from sglang_instrument.analysis.verdict.evidence.finding import Finding

_EVENT: Final = "the event beside the others: `events LOGS{step}{worker}`"


def advice_of(finding: Finding, of_engine: str = "") -> str:
    """Return what to look at next.

    Args:
        finding: The finding.
        of_engine: What the engine's own logs tell to look at, if they do.
    """
    validate = " --validate" if finding.validate else ""
    step = finding.evidence.get("worst_step") if finding.step is None else finding.step
    place = {
        "step": "" if step is None else f" --step {step}{validate}",
        "worker": "" if finding.worker is None else f" --worker {finding.worker}",
        "workers": "" if finding.worker is None else f" --workers {finding.worker}",
        "update": finding.evidence.get("worst_update", ""),
        # Commands take the begin of an id; a backtick would end the command.
        "request": quote((finding.request_id or "").partition("`")[0]),
    }
    if of_engine:
        return f"{of_engine}; {LOOK_AT_ENGINE}".format(**place)
    cause = CAUSES.get(finding.cause)
    if cause is None:  # a phase that only the log names
        return _EVENT.format(**place)
    of_step = cause.advice_of_step if finding.scope == "step" else ""
    return (of_step or cause.advice).format(**place)
