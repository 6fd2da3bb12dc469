"""What each server did in all, and in each window of time: from what SGLang's own processes logged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table


def _share(phase: str) -> Callable[[Mapping[str, Any]], float | None]:
    def share(row: Mapping[str, Any]) -> float | None:
        value: float | None = row["shares"].get(phase)
        return value

    return share


def _begin(row: Mapping[str, Any]) -> str:
    return datetime.fromtimestamp(row["begin_us"] / 1e6, timezone.utc).strftime("%m-%d %H:%M:%S")


def _phase(name: str, meaning: str) -> Column:
    return Column(
        name,
        f"share of the requests' time in which {meaning}",
        "share",
        cell=_share(name),
        json=False,
        frame=False,
    )


_COUNTED: Final = (
    Column("requests", "how many it served", "count"),
    Column(
        "first_to_last_sec",
        "from its first request to the end of its last",
        "time",
        gives_way=1,
        formerly="wall_sec",
        former_title="wall",
    ),
    Column("p50_sec", "half of its requests took at most this long", "time", gives_way=2),
    Column("p99_sec", "99 % of its requests took at most this long", "time"),
    Column("max_sec", "its longest request", "time", gives_way=3),
    _phase("queue", "they waited for a place in the batch"),
    _phase("prefill", "prompts were read"),
    _phase("decode", "replies were written"),
    Column(
        "shares",
        "the shares of queue, prefill and decode; empty where no scheduler logged, null where they are not "
        "known",
        "object",
        terminal=False,
    ),
    Column(
        "retractions",
        "how often requests were taken out of the batch to free memory",
        "count",
        gives_way=4,
        former_title="retracted",
    ),
    Column("prompt_tokens", "tokens of its prompts", "count", terminal=False),
    Column("cached_tokens", "of these, tokens that were in its cache", "count", terminal=False),
    Column("completion_tokens", "tokens of its replies", "count", former_title="tokens"),
    Column(
        "tokens_per_sec",
        "tokens of its replies a second of first_to_last_sec",
        "rounded",
        title="tokens/s",
    ),
)
SERVER_TOTALS: Final = Table(
    name="server_totals",
    row="a server; a terminal shows it where only SGLang's own processes logged",
    commands=("summary",),
    columns=(
        Column("server", "the engine that served the requests"),
        *_COUNTED,
    ),
)
WINDOWS: Final = Table(
    name="windows",
    row="a stretch of time in place of a step; also where only SGLang's own processes logged",
    commands=("summary",),
    option="--window",
    columns=(
        Column("window", "its number, from 1; a request belongs to that in which it arrived", "count"),
        Column(
            "begin_us",
            "its first arrival",
            "moment",
            cell=_begin,
            shown_as="words",
            former_title="begin",
        ),
        Column(
            "cut_by",
            "idle: it ends where no request was in flight for a while; fixed: windows are of one length",
            terminal=False,
            formerly="cut",
        ),
        Column(
            "idle_sec",
            "before it, for how long no request was in flight",
            "time",
            gives_way=1,
        ),
        *_COUNTED,
    ),
)
