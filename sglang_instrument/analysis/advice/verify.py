"""Hold a promise against the run after the change: what was promised, what came, and whether it held."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.advice.intervals import CONFIDENCE
from sglang_instrument.analysis.advice.promises import Promise, name_of_run, read_promises
from sglang_instrument.analysis.changes.statistics import difference, first_is_cold
from sglang_instrument.analysis.ledger.loop import steady
from sglang_instrument.analysis.ledger.loop_of_run import loop_of
from sglang_instrument.analysis.settings.differences import Difference, differing_settings
from sglang_instrument.analysis.settings.recorded import settings_of_run
from sglang_instrument.errors import InstrumentError

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

#: Levers that change which tokens are generated: their steps are compared as they are, not at equal work.
_CHANGE_WORK: Final = ("response cap", "turn cap", "over-sampling")


@dataclass(frozen=True)
class Verified:
    """A promise, and what came.

    Attributes:
        promise: It.
        was_changed: Whether the settings of the run after say that its setting was changed; None if they do
            not tell.
        before_sec: Mean seconds of a step before.
        after_sec: The same after.
        work: Tokens of a step after, over those before; 1 is as many.
        saved_sec: What a step saved, at equal work where the lever does not change the work.
        low: Begin of the 80 % interval of that; None with fewer than two steps.
        high: End of it.
        held: Whether the promised interval and that of the saving overlap; None where steps scatter so much
            that the saving may be what was promised, and nothing as well.
    """

    promise: Promise
    was_changed: bool | None
    before_sec: float
    after_sec: float
    work: float
    saved_sec: float
    low: float | None
    high: float | None
    held: bool | None

    def row(self) -> dict[str, Any]:
        """Return it as a row of the table of verified promises."""
        promise = self.promise
        return {
            "setting": promise.setting,
            "lever": promise.lever,
            "made_us": promise.made_us,
            "now": promise.now,
            "proposed": promise.proposed,
            "was_changed": self.was_changed,
            "promised_sec": promise.saves_sec,
            "promised_low": promise.low,
            "promised_high": promise.high,
            "before_sec": self.before_sec,
            "after_sec": self.after_sec,
            "work": self.work,
            "saved_sec": self.saved_sec,
            "saved_low": self.low,
            "saved_high": self.high,
            "held": self.held,
        }


def verify(before: "Run", after: "Run") -> list[Verified]:
    """Return what came of the newest promises for a run that were made before the run after it began.

    Raises:
        InstrumentError: No promise was made before, or a run has no step.
    """
    began_us = _began_us(after)
    promises = [
        promise
        for promise in read_promises(before.home, name_of_run(before.folder, before.run_id))
        if promise.made_us < began_us
    ]
    if not promises:
        raise InstrumentError(
            f"{before.name}: `advise` promised nothing for it before {after.name} began; run advise on the "
            "run before a change, then change, then verify"
        )
    newest = [promise for promise in promises if promise.made_us == promises[-1].made_us]
    differences = differing_settings(settings_of_run(before), settings_of_run(after))
    verified = [_verified(promise, before, after, differences) for promise in newest]
    changed = [each for each in verified if each.was_changed]
    return changed or verified


def _began_us(run: "Run") -> int:
    begun = run.digest.steps["start_us"].min()
    if begun is None:
        raise InstrumentError(f"{run.folder}: no training step has a record yet")
    return int(begun)  # type: ignore[arg-type]


def _verified(promise: Promise, before: "Run", after: "Run", differences: Sequence[Difference]) -> Verified:
    first, other = _steps(before), _steps(after)
    work = _tokens(after) / _tokens(before) if _tokens(before) and _tokens(after) else 1.0
    keeps_work = promise.lever not in _CHANGE_WORK
    values = [sec / work for sec in other] if keeps_work else other
    measured = difference(first, values)
    interval = measured.interval(1 - CONFIDENCE)
    usual = mean(first)
    saved = usual * (1 - (measured.ratio or 1.0))
    low, high = (None, None) if interval is None else (usual * (1 - interval[1]), usual * (1 - interval[0]))
    return Verified(
        promise=promise,
        was_changed=_was_changed(promise, differences),
        before_sec=usual,
        after_sec=mean(other),
        work=work,
        saved_sec=saved,
        low=low,
        high=high,
        held=_held(promise, saved, low, high),
    )


def _held(promise: Promise, saved: float, low: float | None, high: float | None) -> bool | None:
    """Return whether a promise held, as far as the interval of what was saved tells."""
    if low is None or high is None:
        return promise.low <= saved <= promise.high
    if low > promise.high or high < promise.low:
        return False
    return None if low <= 0 < promise.low else True


def _steps(run: "Run") -> list[float]:
    """Return the seconds of each step to the begin of the next, without a cold first one."""
    loop = loop_of(run)
    steps = loop.steps().filter(~pl.col("validate"))
    seconds: list[float] = steady(steps, loop.shape())["to_next_step_sec"].drop_nulls().to_list()
    seconds = [sec for sec in seconds if sec > 0]
    if not seconds:
        raise InstrumentError(f"{run.folder}: no training step has a duration yet")
    return seconds[1:] if first_is_cold(seconds) else seconds


def _tokens(run: "Run") -> float:
    """Return the tokens of a step."""
    digest = run.digest.of_workers().filter(~pl.col("validate"))
    tokens = float(digest.requests["response_tokens"].sum() or 0)
    return tokens / max(1, digest.steps["step"].n_unique())


def _was_changed(promise: Promise, differences: Sequence[Difference]) -> bool | None:
    """Return whether the setting of a promise was changed; None if no settings tell it."""
    if not differences:
        return None
    return any(difference.name == promise.setting for difference in differences)
