"""Propose more places where calls of tools or rewards wait for one."""

from collections.abc import Iterator

from sglang_instrument.analysis.advice.evidence.change import Change
from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.advice.evidence.lever import ProposedChange, lever


@lever("pool of tools or rewards", "simulated", "tool", "reward", model_error=0.15)
def pools(grounds: Grounds) -> Iterator[ProposedChange]:
    """Yield for each pool as many places as calls were made at once."""
    for pool in grounds.pools.pools:
        change = Change(free_pools=frozenset({pool.name}))
        event, _, tool = pool.name.partition(" ")
        what = f"tool {tool}" if tool else "rewards" if event == "reward_calculation" else "tools"
        yield ProposedChange(
            f"how many calls of {what} run at once",
            pool.places,
            pool.most,
            costs=f"up to {pool.most - pool.places} more calls at once for whatever serves {what}",
            rests_on=(
                f"{pool.calls:,} calls: as if {pool.places} run at once, and the others wait for "
                f"{100 * pool.waited_share:.0f} % of their time"
            ),
            command="turns LOGS --tools",
            change=change,
            per_step=grounds.playback.saved(change),
        )
