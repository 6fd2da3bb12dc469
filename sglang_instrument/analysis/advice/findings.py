"""Give each finding of the verdict the change of a setting that answers it, where a lever does."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.analysis.verdict.verdict import Verdict, judge

if TYPE_CHECKING:
    from sglang_instrument.analysis.advice.advise import Advice, Advised
    from sglang_instrument.analysis.run.opening import Run

#: Who asks for a verdict does not wait for a longer replay; `advise` makes one of any run.
_MOST_CALLS: Final = 2_000
_MOST_REQUESTS: Final = 30_000


def findings_with_changes(run: "Run", verdict: Verdict | None = None) -> list[Finding]:
    """Return the findings of a run, each with the change that answers it.

    Only the levers that answer a finding are proposed, so a run without such a finding costs nothing more.

    Args:
        run: The run.
        verdict: Its verdict, if already known.

    Returns:
        The findings in the order of the verdict. `change` is `{setting, from, to, saves_sec, low, high}`:
        seconds that a step saves, with the 80 % interval, null for a lever that is only named. It is None
        where `advise` proposes nothing for the finding, and in runs of more than 30,000 requests.
    """
    judged = judge(run) if verdict is None else verdict
    causes = {finding.cause for finding in judged.findings}
    if not causes or len(run.digest.requests) > _MOST_REQUESTS:
        return judged.findings
    # Takes a third of a second to import: only where a lever may be proposed.
    from sglang_instrument.analysis.advice.advise import advice_of
    from sglang_instrument.analysis.advice.levers import LEVERS

    levers = [lever for lever in LEVERS if lever.mends & causes]
    return with_changes(judged.findings, advice_of(run, judged, levers, _MOST_CALLS) if levers else None)


def with_changes(findings: list[Finding], advice: "Advice | None") -> list[Finding]:
    """Return findings, each with the change that answers it.

    Args:
        findings: Of the verdict.
        advice: As `advise` returns it of the same run; None where nothing tells it.
    """
    if advice is None or not advice.levers:
        return findings
    return [replace(finding, change=_change_for(finding, advice.levers)) for finding in findings]


def first_change(findings: Sequence[Finding]) -> str:
    """Return the change that answers the first finding that has one, in words; "" if none has."""
    finding = next((finding for finding in findings if finding.change is not None), None)
    if finding is None or finding.change is None:
        return ""
    whose = "" if finding is findings[0] else f"for {finding.cause}: "
    return f"{whose}{change_words(finding.change)}"


def change_words(change: dict[str, Any]) -> str:
    """Return a change in words: "max_running_requests from 4 to 16 saves 8.9 s a step (7.7 .. 10 s)"."""
    now = "" if change["from"] is None else f" from {_shown(change['from'])}"
    of_setting = f"{change['setting']}{now} to {_shown(change['to'])}"
    if change["saves_sec"] is None:
        return f"{of_setting}; what it saves is not simulated"
    interval = f"{change['low']:.3g} .. {change['high']:.3g} s"
    return f"{of_setting} saves {change['saves_sec']:.3g} s a step ({interval})"


def _change_for(finding: Finding, levers: Sequence["Advised"]) -> dict[str, Any] | None:
    """Return the change of the first lever that answers a finding; levers are in order of what they save."""
    advised = next((advised for advised in levers if _answers(advised, finding)), None)
    if advised is None:
        return None
    saving = advised.saving
    return {
        "setting": advised.proposal.setting,
        "from": advised.proposal.now,
        "to": advised.proposal.proposed,
        "saves_sec": saving and saving.sec,
        "low": saving and saving.low,
        "high": saving and saving.high,
    }


def _answers(advised: "Advised", finding: Finding) -> bool:
    """Return whether a lever answers the cause of a finding and, where it concerns one event, that event."""
    if finding.cause not in advised.lever.mends:
        return False
    change = advised.proposal.change
    events = {*change.free_pools, *change.most_sec} if change is not None else set()
    return not events or finding.event is None or any(finding.event in event for event in events)


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
