"""Propose a shorter time-out, where calls of a tool end at one time long after all others."""

from collections.abc import Iterator

from sglang_instrument.analysis.advice.evidence.change import Change
from sglang_instrument.analysis.advice.evidence.cliffs import cliffs_in
from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.advice.evidence.lever import ProposedChange, lever


@lever("time-out of a tool", "simulated", "tool", model_error=0.05)
def timeout(grounds: Grounds) -> Iterator[ProposedChange]:
    """Yield for each time-out twice the time in which 99 % of the other calls end."""
    for name, calls in grounds.pools.by_name.items():
        if not name.startswith("tool_call"):
            continue
        seconds = [call.end - call.begin for call in calls]
        for cliff in cliffs_in(seconds):
            others = sorted(sec for sec in seconds if sec < cliff.low)
            if not others:
                continue
            shorter = round(max(2 * others[int(0.99 * (len(others) - 1))], 1.0), 1)
            if shorter > 0.7 * cliff.value or cliff.above:
                continue
            tool = name.partition(" ")[2]
            change = Change(most_sec={name: shorter})
            yield ProposedChange(
                f"time-out of tool {tool}" if tool else "time-out of tools",
                round(cliff.value, 1),
                shorter,
                costs="calls that would have answered in between are cut; none did in this run",
                rests_on=f"{cliff.calls} of {len(seconds)} calls end at {cliff.words('s')}: a limit",
                command="turns LOGS --tools",
                change=change,
                per_step=grounds.playback.saved(change),
            )
