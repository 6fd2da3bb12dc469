"""Answer from the engine's own logs where no worker logged: servers without an instrumented trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.answers.engine.join import engine_summary_of, has_engine_logs
from sglang_instrument.analysis.answers.engine.requests import cached_engine_requests

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run


def are_servers_alone(run: Run) -> bool:
    """Return whether the engine's processes logged and no others: no step, worker or turn is known."""
    return has_engine_logs(run) and run.everything.steps.is_empty()


def server_rows(run: Run) -> list[dict[str, Any]]:
    """Return a row for each server, or each scheduler whose server did not log; none without such logs.

    Returns:
        server; requests; first_to_last_sec: from the first arrival to the last answer; p50_sec, p99_sec,
        max_sec: of the requests' durations; prompt_tokens, cached_tokens, completion_tokens; tokens_per_sec:
        written tokens by `first_to_last_sec`; shares, retractions: as `engine_summary` has them.
    """
    if not has_engine_logs(run):
        return []
    named = cached_engine_requests(run).with_columns(of=pl.coalesce("server", "scheduler"))
    rows = []
    for (name,), of_server in sorted(named.group_by("of"), key=lambda group: str(group[0][0])):
        rows.append({"server": name, **_counted(of_server)})
    return rows


#: A window ends where no request was in flight for this long; for longer, if there were more windows.
_IDLE_SEC: Final = 1.0
_MOST_WINDOWS: Final = 200
#: Without such a pause, windows are of one of these lengths, at most this many.
_LENGTHS_SEC: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
_SOME_WINDOWS: Final = 20


def window_rows(run: Run, window_sec: float | None = None) -> list[dict[str, Any]]:
    """Return a row for each window of time, of all servers together; none without the engine's logs.

    Requests belong to the window in which they arrive.

    Args:
        run: The run.
        window_sec: The length of a window; None cuts where no request was in flight for a while, as between
            the steps of a rollout, and takes windows of one length where no such pause is.

    Returns:
        window: from 1; begin_us; cut_by: "idle" or "fixed"; idle_sec: the pause before it; and the other
        columns of `server_rows`.
    """
    if not has_engine_logs(run):
        return []
    requests = cached_engine_requests(run).filter(pl.col("start_us").is_not_null()).sort("start_us", "rid")
    if requests.is_empty():
        return []
    ended = pl.coalesce("end_us", "start_us")
    idle = (pl.col("start_us") - ended.cum_max().shift()) / 1e6
    requests = requests.with_columns(idle_sec=idle)
    cut_by = "idle" if window_sec is None else "fixed"
    pause = _pause(requests["idle_sec"])
    if window_sec is None and pause is None:
        cut_by, window_sec = "fixed", _usual_length(requests)
    if window_sec is not None:
        begins = (pl.col("start_us") - pl.col("start_us").min()) // max(1, int(window_sec * 1e6))
    else:
        begins = (pl.col("idle_sec") >= pause).fill_null(value=False).cum_sum()
    rows = []
    for number, (_, of_window) in enumerate(
        requests.with_columns(of=begins).group_by("of", maintain_order=True), 1
    ):
        before = of_window["idle_sec"][0]
        rows.append(
            {
                "window": number,
                "begin_us": of_window["start_us"].min(),
                "cut_by": cut_by,
                "idle_sec": before if before is not None and before > 0 else None,
                **_counted(of_window),
            }
        )
    return rows


def _pause(idle: pl.Series) -> float | None:
    """Return how long a pause must be to end a window; None if there is none so long."""
    pauses = idle.filter(idle >= _IDLE_SEC).sort(descending=True)
    if pauses.is_empty():
        return None
    return float(pauses[min(len(pauses), _MOST_WINDOWS - 1) - 1])


def _usual_length(requests: pl.DataFrame) -> float:
    """Return a round length that gives at most `_SOME_WINDOWS` windows."""
    first: Any = requests["start_us"].min()
    last: Any = requests["start_us"].max()
    least = (last - first) / 1e6 / _SOME_WINDOWS
    return float(next((length for length in _LENGTHS_SEC if length > least), _LENGTHS_SEC[-1]))


def _counted(requests: pl.DataFrame) -> dict[str, Any]:
    """Return what a server or a window did, from the rows of its requests."""
    summary = engine_summary_of(requests)
    row: dict[str, Any] = {
        **_times(requests),
        **{kind: _sum(requests[kind]) for kind in ("prompt_tokens", "cached_tokens", "completion_tokens")},
        **{key: summary[key] for key in ("requests", "shares", "retractions")},
    }
    return {**row, "tokens_per_sec": _rate(row["completion_tokens"], row["first_to_last_sec"])}


def calls_as_turn(run: Run) -> dict[str, Any]:
    """Return the engine's calls as a row of `turn_table` whose turn is null: only callers know theirs."""
    requests = cached_engine_requests(run)
    known, times = requests.drop_nulls(["prompt_tokens", "cached_tokens"]), _times(requests)
    prompts, cached = (_sum(known[name]) for name in ("prompt_tokens", "cached_tokens"))
    return {
        "step": None,
        "validate": False,
        "turn": None,
        "requests": len(requests),
        "unended": None,
        "engine_sec": float(requests["duration_sec"].sum() or 0.0),
        "tool_sec": None,
        "interaction_sec": None,
        "engine_p50_sec": times["p50_sec"],
        "engine_p99_sec": times["p99_sec"],
        "response_tokens": _sum(requests["completion_tokens"]),
        "prompt_tokens": prompts,
        "cached_tokens": cached,
        "cached_share": cached / prompts if prompts and cached is not None else None,
    }


def _times(requests: pl.DataFrame) -> dict[str, Any]:
    took = requests["duration_sec"].drop_nulls()
    first: Any = requests["start_us"].min()
    last: Any = requests["end_us"].max()
    return {
        "first_to_last_sec": None if first is None or last is None else (last - first) / 1e6,
        "p50_sec": took.quantile(0.5, "linear"),
        "p99_sec": took.quantile(0.99, "linear"),
        "max_sec": took.max(),
    }


def _sum(tokens: pl.Series) -> int | None:
    return int(tokens.sum()) if tokens.count() else None


def _rate(tokens: int | None, seconds: float | None) -> float | None:
    return tokens / seconds if tokens is not None and seconds else None
