"""Advise: which settings to change, in the order of what that saves, or that there is nothing to gain."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.advice.calm import dominating_fault, is_worth_telling
from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.advice.evidence.lever import Lever, ProposedChange
from sglang_instrument.analysis.advice.evidence.playback import MOST_CALLS
from sglang_instrument.analysis.advice.intervals import Saving, saving_of
from sglang_instrument.analysis.advice.levers import LEVERS
from sglang_instrument.analysis.ledger.loop_of_run import loop_of
from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.analysis.verdict.verdict import Verdict, judge
from sglang_instrument.errors import InstrumentError, LogError

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_ENOUGH: Final = 0.25  # of what throwing samples away saves
_ASSUMED: Final = (
    "Simulated savings replay the recorded requests at engines whose speed is fitted to their calls. The "
    "80 % interval is for the mean of as many steps of other prompts.",
    "Savings of two levers overlap. They are not added.",
)


@dataclass(frozen=True)
class Advised:
    """A lever that is told.

    Attributes:
        lever: The lever.
        proposal: What the lever proposes.
        saving: What the change saves a step; None for a named lever.
        share: The share of the step that the change saves, or that the present setting of a named lever cost.
        is_measured: Whether a twin measured the saving.
    """

    lever: Lever
    proposal: ProposedChange
    saving: Saving | None
    share: float
    is_measured: bool = False

    def row(self, logs: str) -> dict[str, Any]:
        """Return the lever as a row of the table of levers.

        Args:
            logs: The run, for the command.
        """
        saving, proposal = self.saving, self.proposal
        return {
            "lever": self.lever.name,
            "kind": "measured" if self.is_measured else self.lever.kind,
            "setting": proposal.setting,
            "now": proposal.now,
            "proposed": proposal.proposed,
            "saves_sec": saving.sec if saving else None,
            "low": saving.low if saving else None,
            "high": saving.high if saving else None,
            "costs_sec": proposal.costs_sec,
            "share": self.share,
            "costs": proposal.costs,
            "rests_on": proposal.rests_on,
            "command": proposal.command.replace("LOGS", logs),
        }


@dataclass(frozen=True)
class Advice:
    """What to change in a run.

    Attributes:
        levers: Simulated ones in the order of what they save for sure, then named ones by what they cost;
            before all others those named ones whose present value cost more than any other may save. One that
            throws samples away stands behind those that save a quarter as much without that.
        sentence: The answer in words, also where there is nothing to change.
        together: What the two best simulated levers save together; None unless there are two.
        step_sec: Mean seconds of a step, to the begin of the next.
        mend_first: The fault that dominates the run: then no lever is told.
        missing: What the log does not tell, and what would record it.
        assumptions: What is taken for granted.
    """

    levers: list[Advised]
    sentence: str
    together: Saving | None = None
    step_sec: float = 0.0
    mend_first: Finding | None = None
    missing: list[str] = field(default_factory=list)
    assumptions: tuple[str, ...] = _ASSUMED

    def rows(self, logs: str) -> list[dict[str, Any]]:
        """Return the levers as rows of the table of levers."""
        return [advised.row(logs) for advised in self.levers]


def advise(
    run: "Run",
    verdict: Verdict | None = None,
    levers: Sequence[Lever] = LEVERS,
    most_calls: int = MOST_CALLS,
) -> Advice:
    """Return what to change in a run.

    Args:
        run: The run.
        verdict: Its verdict, if already known.
        levers: Those that may be proposed.
        most_calls: How many of its calls of the engine are replayed, about: fewer make intervals wider.

    Returns:
        The advice. Where nothing tells how fast the engines are, only levers that need no simulation.

    Raises:
        LogError: It has no training step yet.
    """
    if run.digest.steps.is_empty():
        raise LogError(f"{run.name}: no step has a record yet")
    loop = loop_of(run)
    grounds = Grounds(run, loop, most_calls)
    unplayed = _unplayed(grounds)
    step_sec = grounds.step_sec if unplayed else grounds.playback.step_sec
    proposed = [pair for lever in levers for pair in _proposed(lever, grounds, bool(unplayed))]
    shown = _told(proposed, step_sec)
    mended = {cause for advised in shown for cause in advised.lever.mends}
    judged = judge(run) if verdict is None else verdict
    steps = loop.steps()
    wall_sec = float(steps["to_next_step_sec"].sum())
    fault = dominating_fault(judged.findings, len(steps), wall_sec, mended)
    missing = sorted({_missing(advised.proposal) for advised in shown if advised.proposal.not_recorded})
    if fault is not None:
        return Advice([], f"mend this first: {fault.sentence}", None, step_sec, fault)
    together = _together(grounds, shown)
    sentence = _sentence(shown, grounds, step_sec)
    if unplayed:
        missing.insert(0, f"what a step would save: {unplayed}")
        sentence = sentence if shown else "no saving can be simulated"
    return Advice(shown, sentence, together, step_sec, None, [*missing, *loop.missing()])


def _unplayed(grounds: Grounds) -> str:
    """Return why the recorded requests cannot be played again; "" if they can."""
    try:
        _ = grounds.playback
    except InstrumentError as reason:
        return str(reason)
    return ""


def _proposed(lever: Lever, grounds: Grounds, is_unplayed: bool) -> list[tuple[Lever, ProposedChange]]:
    """Return what a lever proposes; nothing if it needs a playback and there is none."""
    try:
        return [(lever, proposal) for proposal in lever.propose(grounds)]
    except InstrumentError:
        if not is_unplayed:
            raise
        return []


def _told(proposed: Sequence[tuple[Lever, ProposedChange]], step_sec: float) -> list[Advised]:
    """Return the proposals that are told, in their order."""
    shown: list[Advised] = []
    for lever, proposal in proposed:
        error = max(lever.model_error, proposal.model_error)
        saving = saving_of(proposal.per_step, error) if lever.kind == "simulated" else None
        if is_worth_telling(lever, proposal, saving, step_sec):
            sec = saving.sec if saving else proposal.costs_sec or 0.0
            shown.append(Advised(lever, proposal, saving, sec / step_sec))
    return in_order(shown, step_sec)


def in_order(shown: Sequence[Advised], step_sec: float) -> list[Advised]:
    """Return levers as `Advice.levers` says; last those that were measured and save nothing for sure."""
    savings = [(advised, advised.saving) for advised in shown if advised.saving is not None]
    sure = sorted((pair for pair in savings if pair[1].low > 0), key=lambda pair: -pair[1].low)
    dropping = [pair for pair in sure if pair[0].lever.drops_samples]
    least_sec = _ENOUGH * max((saving.sec for _, saving in dropping), default=0.0)
    others = [pair for pair in sure if not pair[0].lever.drops_samples]
    before = [pair for pair in others if pair[1].sec >= least_sec]
    after = [pair for pair in others if pair[1].sec < least_sec]
    most = [saving.sec if advised.lever.drops_samples else saving.high for advised, saving in sure]
    most_sec = max(most, default=0.0)
    named = sorted((advised for advised in shown if advised.saving is None), key=lambda each: -each.share)
    dear = [advised for advised in named if advised.share * step_sec > most_sec]
    unsure = [advised for advised, saving in savings if saving.low <= 0]
    ordered = [advised for advised, _ in (*before, *dropping, *after)]
    return [*dear, *ordered, *named[len(dear) :], *unsure]


def _missing(proposal: ProposedChange) -> str:
    return f"{proposal.setting}: its value is not recorded; {proposal.not_recorded}"


def _together(grounds: Grounds, levers: Sequence[Advised]) -> Saving | None:
    """Return what the two best levers save, simulated together; None unless two can be."""
    best = [advised for advised in levers if advised.saving is not None][:2]
    changes = [advised.proposal.change for advised in best]
    if len(changes) < 2 or changes[0] is None or changes[1] is None:
        return None
    error = max(max(advised.lever.model_error, advised.proposal.model_error) for advised in best)
    return saving_of(grounds.playback.saved(changes[0].with_change(changes[1])), error)


def _sentence(levers: Sequence[Advised], grounds: Grounds, step_sec: float) -> str:
    if levers:
        return first_in_words(levers, step_sec)
    of_step = (grounds.mean["rollout_sec"] or 0.0) / step_sec if step_sec else 0.0
    return f"nothing to gain from settings: the rollout is at work in {100 * of_step:.0f} % of the time"


def first_in_words(levers: Sequence[Advised], step_sec: float) -> str:
    """Return what the first lever saves or cost, and after a named one what the first sure saving is."""
    first = levers[0]
    sure = next((each for each in levers if each.saving is not None and each.saving.low > 0), None)
    saved = "nothing else is to gain" if sure is None else _what_it_saves(sure, step_sec)
    if first.saving is None:
        return f"{first.proposal.setting} cost {100 * first.share:.0f} % of a step; {saved}"
    return "nothing that was measured saves time for sure" if sure is None else saved


def _what_it_saves(advised: Advised, step_sec: float) -> str:
    proposal, saving = advised.proposal, advised.saving
    assert saving is not None  # noqa: S101
    words = (
        f"{proposal.setting}: to {_shown(proposal.proposed)} saves {saving.sec:.3g} s of a step of "
        f"{step_sec:.3g} s"
    )
    return f"{words}, measured on a twin" if advised.is_measured else words


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def advice_of(
    run: "Run",
    verdict: Verdict | None = None,
    levers: Sequence[Lever] = LEVERS,
    most_calls: int = MOST_CALLS,
) -> Advice | None:
    """Return what `advise` returns; None where nothing tells it."""
    try:
        return advise(run, verdict, levers, most_calls)
    except InstrumentError:
        return None
