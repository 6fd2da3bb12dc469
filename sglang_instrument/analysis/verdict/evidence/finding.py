"""Define a finding: a cause that the verdict names, with its place, its cost and the numbers behind it."""

from dataclasses import dataclass, field
from typing import Any, Final, Literal

Scope = Literal["request", "worker", "step", "run"]
#: Causes that ended a run, or a step of it: they come first.
ENDINGS: Final = ("hang", "death")
#: Causes that follow from others, or are none: they come last, and are no fault to be mended.
SYMPTOMS: Final = ("trainer-waits", "rollout-waits", "exposed-reward", "goes-with")


@dataclass(frozen=True)
class Finding:
    """A cause that the verdict names.

    Attributes:
        cause: One of `detectors.CAUSES`.
        scope: What it concerns: one request, a worker in a step, a step with all its workers, or the run.
        step, validate: The step; None for the run.
        worker: The worker; None where it concerns all of them.
        request_id: The request, where it is one.
        event: The event or kind of work that took the time.
        lost_sec: How much sooner the step would have ended without it.
        sentence: The finding in words.
        advice: What to look at next, with the command.
        evidence: The numbers behind it.
        change: The change of a setting that answers it; None unless `findings_with_changes` has given one.
    """

    cause: str
    scope: Scope
    lost_sec: float
    sentence: str
    step: int | None = None
    validate: bool = False
    worker: int | None = None
    request_id: str | None = None
    event: str | None = None
    advice: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    change: dict[str, Any] | None = None


def step_name(step: int, validate: bool) -> str:
    """Return "step 5" or "validation 5"."""
    return f"{'validation' if validate else 'step'} {step}"


def seconds(duration_sec: float) -> str:
    """Return a duration for a sentence: "0.52 s", "4.1 s", "37 s"."""
    return f"{duration_sec:.0f} s" if duration_sec >= 9.95 else f"{duration_sec:.2g} s"


def times_usual(sec: float, usual_sec: float, floor_sec: float) -> str:
    """Return how long something took beside the usual: as a factor only where the usual is no near nothing.

    Args:
        sec: What it took.
        usual_sec: What it usually takes.
        floor_sec: The shortest usual time that a factor is told of: `effects.floor_of`.
    """
    if usual_sec < floor_sec:
        return f"{seconds(sec)}, usually {seconds(usual_sec)}"
    return f"{sec / usual_sec:.1f} times the usual"


def where(row: dict[str, Any]) -> str:
    """Return "step 5: worker 2", or "step 5" for a row without a worker."""
    worker = row.get("worker")
    named = step_name(row["step"], row["validate"])
    return named if worker is None else f"{named}: worker {worker}"


def shared_by(having: int, workers: int) -> str:
    """Return " on most workers", or on how many, if only these do such work at all; "" for a lone worker."""
    if having == workers == 1:
        return ""
    if having * 2 > workers:
        return " on most workers"
    return f" on {having} of {workers} workers, the only {'one' if having == 1 else 'ones'} to do it"


def place_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return what a row says of step, validate, worker and request_id, as arguments of `Finding`."""
    return {name: row[name] for name in ("step", "validate", "worker", "request_id") if name in row}
