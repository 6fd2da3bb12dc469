"""Propose the setting of the other servers for one whose requests queue, where it has another."""

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.advice.evidence.lever import ProposedChange, lever
from sglang_instrument.analysis.settings.recorded import Value

_KEYS: Final = ("running limit", "KV tokens", "memory")  # more of each lets more requests run
_LEAST_QUEUE: Final = 0.1  # of the calls' time at the server
_TIMES: Final = 2.0  # times the share of the other servers


@lever("unequal servers", "named", "queue", "engine", "slow-server", "retraction", "slow-calls", "slow-call")
def unequal_servers(grounds: Grounds) -> Iterator[ProposedChange]:
    """Yield, for each server that queues far longer than one with more room, the setting of that one."""
    queued = _queued_shares(grounds)
    for key in _KEYS:
        settings = grounds.by_server(key)
        known = [server for server in queued if server in settings]
        if len(known) < 2:
            continue
        best = known[-1]
        for server in known[:-1]:
            setting, other = settings[server], settings[best].value
            is_longer = queued[server] >= max(_LEAST_QUEUE, _TIMES * queued[best])
            if not is_longer or not _has_less(setting.value, other):
                continue
            yield ProposedChange(
                f"{setting.name} of {server}",
                setting.value,
                "not set, as there" if other is None else other,
                costs=f"nothing that {best} does not pay",
                rests_on=(
                    f"requests queue for {100 * queued[server]:.0f} % of their calls' time at {server}, and "
                    f"for {100 * queued[best]:.0f} % at {best}"
                ),
                command="servers LOGS --over-time",
                costs_sec=queued[server] * (grounds.mean["rollout_sec"] or 0.0),
            )


def _queued_shares(grounds: Grounds) -> dict[str, float]:
    """Return for each server the share of its calls' time in which they queued, the largest first."""
    known = grounds.calls.drop_nulls(["server", "queue_sec", "call_sec"])
    share = pl.col("queue_sec").sum() / pl.col("call_sec").sum()
    shares = known.group_by("server").agg(share=share).sort("share", "server", descending=[True, False])
    return {str(server): float(queued) for server, queued in shares.iter_rows()}


def _has_less(value: Value, other: Value) -> bool:
    """Return whether a setting lets fewer requests run than another value; None sets no limit."""
    numbers: tuple[Any, Any] = (value, other)
    if value is None or isinstance(value, str | bool):
        return False
    return other is None or (not isinstance(other, str | bool) and numbers[0] < numbers[1])
