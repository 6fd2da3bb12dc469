"""Say which findings are right for a planted cause."""

from typing import Final

from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.testing.causes import Cause
from sglang_instrument.testing.causes.slow_work import TwoSlowEngines

#: Words of findings that are right for a cause beside its own: either word describes what the log shows.
_ALSO_RIGHT: Final = {"slow-calls": {"standstill"}, "hang": {"death"}, "death": {"hang"}}


def workers_of(cause: Cause) -> set[int | None]:
    """Return the workers that the finding of a cause may name; None where it concerns all."""
    if isinstance(cause, TwoSlowEngines) and cause.worker is not None:
        # Half of the workers: of each, or of the step.
        return {cause.worker, cause.worker + 1, None}
    return {cause.place[1]}


def is_right(finding: Finding, cause: Cause) -> bool:
    """Return whether a finding names a planted cause: its word, its step, its worker, and its part.

    Replies that chance may have drawn are a finding of the run: its evidence tells of which step and worker
    the longest is.
    """
    longest = finding.evidence["longest"] if finding.evidence.get("drawn") else {}
    step, worker = longest.get("step", finding.step), longest.get("worker", finding.worker)
    if longest and cause.place[1] is None:
        worker = None
    return (
        finding.cause in {cause.cause, *_ALSO_RIGHT.get(cause.cause, ())}
        and cause.place[0] in (None, step)
        and worker in workers_of(cause)
        and cause.in_event in (None, finding.event)
    )
