"""Say in words what `servers` found: balance, moves, and what would record what is not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from sglang_instrument.sparkline import sparkline

#: What to do where a column is not known at all.
_WHERE: Final = {
    "server": "which server ran a call is logged by SGLang's own processes (SGLANG_INSTRUMENT=1 in their "
    'environment, engine_detail not "off") and by the tables of verl and AReaL',
    "cached_tokens": "tokens in the cache are logged by SGLang's own processes, and by callers whose replies "
    "hold meta_info (slime, AReaL, sglang.Engine)",
    "queue_sec": 'the queue is logged by SGLang\'s schedulers with engine_detail="requests" (the default)',
    "retractions": "retractions are logged by SGLang's schedulers with engine_detail="
    '"requests" (the default)',
    "kv_cache_share": "the key-value cache is logged by SGLang's schedulers at each admission, with "
    'engine_detail="requests" (the default), and not by logs of earlier versions of this package',
    "conversations": "moves are known where callers log the request of each call, with its rid",
}
_NO_CACHE: Final = (
    "no conversation found what it left there: a prefix cache that is off (disable_radix_cache, AReaL's "
    "default), or flushed before each turn"
)


def balance_words(told: dict[str, Any]) -> str:
    """Return the answer of `load.balance` as a sentence; "" if no server is known."""
    if told["times_mean"] is None:
        return "balance: one server, so nothing to compare" if told["servers"] == 1 else ""
    return (
        f"balance: {told['busiest']} had the most work, {told['times_mean']:.2f} times the mean of "
        f"{told['servers']} servers"
    )


def affinity_words(kept: dict[str, Any]) -> list[str]:
    """Return the answer of `conversations.affinity` as sentences; none without later calls."""
    if not kept["later_calls"]:
        return []
    lines = [
        f"conversations: {kept['stayed']:,} of {kept['later_calls']:,} later calls "
        f"({_percent(kept['stayed_share'])} %) went to the server of the call before"
    ]
    shares = {
        "after a call of its own": "cached_share_stayed",
        "after a call of another": "cached_share_moved",
    }
    hits = [f"{_percent(kept[key])} % {words}" for words, key in shares.items() if kept[key] is not None]
    if hits:
        again = kept["read_again_tokens"]
        rest = "" if again is None else f"; {again:,} tokens that a server had seen before were read again"
        lines.append(f"in the server's cache: {', '.join(hits)}{rest}")
        if kept["cached_share_stayed"] == 0:
            lines.append(_NO_CACHE)
    return lines


def unknown_words(table: pl.DataFrame) -> list[str]:
    """Return what would record what `server_table` does not know, or the server of some calls."""
    if not len(table):
        return [f"the log does not tell which engine calls ran where; {_WHERE['server']}"]
    missing = [name for name in _WHERE if name != "server" and not table[name].count()]
    if table["server"].null_count():
        missing.insert(0, "server")
    return [f"-: {_WHERE[name]}" for name in missing]


def no_cache_words(turns: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what would record the cached tokens, if no row of `conversations.with_cached` has any."""
    is_known = any(row["cached_tokens"] is not None for row in turns)
    return [] if is_known or not turns else [f"-: {_WHERE['cached_tokens']}"]


def bars(loads: pl.DataFrame) -> dict[str | None, str]:
    """Return `load.load_by_slice` as a sparkline for each server; a slice without calls is a space."""
    own: dict[str | None, list[float]] = {}
    for server, load in loads.sort("slice").select("server", "load").iter_rows():
        own.setdefault(server, []).append(load)
    highest = max((load for one in own.values() for load in one), default=0.0)
    return {server: sparkline(one, highest) for server, one in own.items()}


def _percent(share: float) -> str:
    value = share * 100
    return f"{value:.0f}" if value >= 10 or not value else f"{value:.1f}" if value >= 0.05 else "<0.1"
