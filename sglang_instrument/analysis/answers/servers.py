"""Answer from the engine's own logs where no worker logged: servers without an instrumented trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from sglang_instrument.analysis.answers.engine_requests import cached_engine_requests
from sglang_instrument.analysis.answers.join import engine_summary_of, has_engine_logs

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run


def are_servers_alone(run: Run) -> bool:
    """Return whether the engine's processes logged and nobody else: no step, worker or turn is known."""
    return has_engine_logs(run) and run.everything.steps.is_empty()


def server_rows(run: Run) -> list[dict[str, Any]]:
    """Return a row for each server, or each scheduler whose server did not log; none without such logs.

    Returns:
        server; requests; wall_sec: from the first arrival to the last answer; p50_sec, p99_sec, max_sec: of
        the requests' durations; prompt_tokens, cached_tokens, completion_tokens; tokens_per_sec: written
        tokens by `wall_sec`; shares, retractions: as `engine_summary` has them.
    """
    if not has_engine_logs(run):
        return []
    named = cached_engine_requests(run).with_columns(of=pl.coalesce("server", "scheduler"))
    rows = []
    for (name,), own in sorted(named.group_by("of"), key=lambda group: str(group[0][0])):
        summary = engine_summary_of(own)
        rows.append(
            {
                "server": name,
                **_times(own),
                **{kind: _sum(own[kind]) for kind in ("prompt_tokens", "cached_tokens", "completion_tokens")},
                **{key: summary[key] for key in ("requests", "shares", "retractions")},
            }
        )
    return [{**row, "tokens_per_sec": _rate(row["completion_tokens"], row["wall_sec"])} for row in rows]


def calls_as_turn(run: Run) -> dict[str, Any]:
    """Return the engine's calls as a row of `turn_table` whose turn is null: only callers know theirs."""
    requests = cached_engine_requests(run)
    known, times = requests.drop_nulls(["prompt_tokens", "cached_tokens"]), _times(requests)
    return {
        "step": None,
        "validate": False,
        "turn": None,
        "requests": len(requests),
        "engine_sec": float(requests["duration_sec"].sum() or 0.0),
        "tool_sec": None,
        "interaction_sec": None,
        "engine_p50_sec": times["p50_sec"],
        "engine_p99_sec": times["p99_sec"],
        "response_tokens": _sum(requests["completion_tokens"]),
        **{name: _sum(known[name]) for name in ("prompt_tokens", "cached_tokens")},
    }


def _times(requests: pl.DataFrame) -> dict[str, Any]:
    took = requests["duration_sec"].drop_nulls()
    first: Any = requests["start_us"].min()
    last: Any = requests["end_us"].max()
    return {
        "wall_sec": None if first is None or last is None else (last - first) / 1e6,
        "p50_sec": took.quantile(0.5, "linear"),
        "p99_sec": took.quantile(0.99, "linear"),
        "max_sec": took.max(),
    }


def _sum(tokens: pl.Series) -> int | None:
    return int(tokens.sum()) if tokens.count() else None


def _rate(tokens: int | None, seconds: float | None) -> float | None:
    return tokens / seconds if tokens is not None and seconds else None
