"""Join queues that move from server to server: the router loads them in turn, and no server is at fault."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from sglang_instrument.analysis.verdict.evidence.detector import NamedCause, joiner
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence
from sglang_instrument.analysis.verdict.evidence.servers.routed import NOT_PLANTED

SERVERS_IN_TURN: Final = NamedCause(
    "servers-in-turn",
    "run",
    "in half of the steps or more, [calls queued](#servers-and-their-caches) at one server while the others "
    "had room, and at no server in most of these steps. It joins the findings `queue` of these steps",
    "look at the router: a cache-aware policy sends prompts that begin alike to one server, until its limit "
    "of imbalance; `servers LOGS --over-time`",
    not_planted=NOT_PLANTED,
)
_FEWEST: Final = 3  # steps
_MOST: Final = 0.5


@joiner(SERVERS_IN_TURN)
def join_servers_in_turn(findings: Sequence[Finding], evidence: Evidence) -> list[Finding]:
    """Return the findings, with one in the place of queues that are at another server in each step."""
    queues = [finding for finding in findings if finding.cause == "queue" and finding.step is not None]
    steps = {(finding.step, finding.validate) for finding in queues}
    servers = Counter(finding.evidence["server"] for finding in queues)
    if len(steps) < max(_FEWEST, _MOST * len(evidence.windows)):
        return list(findings)
    if max(servers.values()) > _MOST * len(queues):
        return list(findings)
    lost_sec = sum(finding.lost_sec for finding in queues) / len(steps)
    mean_sec = sum(finding.evidence["mean_sec"] for finding in queues) / len(queues)
    of = max(finding.evidence["servers"] for finding in queues)
    sentence = (
        f"in {len(steps)} of {len(evidence.windows)} steps, calls queued {seconds(mean_sec)} at one of {of} "
        f"servers while the others had room, at {len(servers)} of them in turn; {seconds(lost_sec)} lost a step"
    )
    worst = max(queues, key=lambda finding: finding.lost_sec)
    numbers = {"steps": len(steps), "servers": of, "mean_sec": mean_sec, "worst_step": worst.step}
    joined = Finding(
        SERVERS_IN_TURN.name, "run", lost_sec, sentence, event="queue", evidence={**numbers, **_of(servers)}
    )
    return [joined, *(finding for finding in findings if finding not in queues)]


def _of(servers: Counter[str]) -> dict[str, dict[str, int]]:
    """Return in how many steps each server had the queue, by their names."""
    return {"steps_by_server": dict(sorted(servers.items()))}
