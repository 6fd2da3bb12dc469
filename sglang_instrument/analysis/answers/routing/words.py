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


def balance_words(balance: dict[str, Any]) -> str:
    """Return the answer of `load.balance` as a sentence; "" if no server is known."""
    if balance["times_mean"] is None:
        return "balance: one server, so nothing to compare" if balance["servers"] == 1 else ""
    return (
        f"balance: {balance['busiest']} had the most work, {balance['times_mean']:.2f} times the mean of "
        f"{balance['servers']} servers"
    )


def affinity_words(affinity: dict[str, Any]) -> list[str]:
    """Return the answer of `conversations.affinity` as sentences; none without later calls."""
    if not affinity["later_calls"]:
        return []
    lines = [
        f"conversations: {affinity['stayed']:,} of {affinity['later_calls']:,} later calls "
        f"({_percent(affinity['stayed_share'])} %) went to the server of the call before"
    ]
    shares = {
        "after a call of its own": "cached_share_stayed",
        "after a call of another": "cached_share_moved",
    }
    hits = [
        f"{_percent(affinity[key])} % {words}" for words, key in shares.items() if affinity[key] is not None
    ]
    if hits:
        again = affinity["read_again_tokens"]
        rest = "" if again is None else f"; {again:,} tokens that a server had seen before were read again"
        lines.append(f"in the server's cache: {', '.join(hits)}{rest}")
        if affinity["cached_share_stayed"] == 0:
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
    of_servers: dict[str | None, list[float]] = {}
    for server, load in loads.sort("slice").select("server", "load").iter_rows():
        of_servers.setdefault(server, []).append(load)
    highest = max((load for loads_of_server in of_servers.values() for load in loads_of_server), default=0.0)
    return {server: sparkline(loads_of_server, highest) for server, loads_of_server in of_servers.items()}


def _percent(share: float) -> str:
    value = share * 100
    return f"{value:.0f}" if value >= 10 or not value else f"{value:.1f}" if value >= 0.05 else "<0.1"
