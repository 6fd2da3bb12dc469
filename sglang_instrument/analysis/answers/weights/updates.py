"""Group the records of weight updates into updates: their parts, servers, and the calls that they stalled."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.answers.weights.records import as_number, weight_spans
from sglang_instrument.analysis.answers.weights.served import served_calls

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

#: The parts of an update in the order in which they usually come.
PARTS: Final = ("pause", "drain", "transfer", "resume", "flush")
#: Who knows most exactly when a server had its weights: the engine itself, then what speaks to it.
_LEVELS: Final = ("scheduler", "receiver", "server")
_APART_US: Final = 1_000_000  # so long without any record of an update, and generation not paused
_LONGEST_PAUSE_US: Final = 600_000_000  # a pause whose end was lost ends here
_LATE_SEC: Final = 1.0  # a server that is less late than this costs nothing
_LATE: Final = 0.5  # times the transfer of the other servers
_ABORTED: Final = ("abort", "aborted")
_NO_UPDATE: Final = (
    "no weight update is in the log; the tables of verl, slime and AReaL record updates in the trainer, and "
    "the table sglang/weights records them in SGLang's own processes"
)
_NO_CALL: Final = (
    "no engine call is in the log: which ones an update stalled is not known; SGLang's own processes record "
    'them with engine_detail="requests" (the default), callers with detail="turn" or "all" (the default)'
)
_NO_END: Final = "no call logs why it ended (`finish_reason`): which ones an update aborted is not known"
_NO_SERVER: Final = (
    "which server was last is not known: no server logs its updates; SGLang's schedulers do with "
    'engine_detail="requests" (the default), where SGLANG_INSTRUMENT=1 is in their environment'
)
_NO_VERSION: Final = (
    "no update names its version, so labels of replies are not judged: give the engine a `weight_version` "
    "with its weights"
)
_NO_PART: Final = (
    "no update has a record of {parts}: either there was none, or what does it was not reached; pauses are "
    "logged by verl from 0.7.1, slime, AReaL, and SGLang from 0.5.6, drains and flushes by SGLang itself"
)
Row = dict[str, Any]


def weight_updates(run: Run) -> list[Row]:
    """Return one row per weight update, in the order of time.

    Returns:
        update: its number, from 1; weight_version; step: of the trainer's record, if one tells; start_us,
        end_us, duration_sec: from its first record to its last; pause_sec, drain_sec, transfer_sec,
        resume_sec, flush_sec: during which some process was in this part; is_done: false if a transfer
        failed; servers: as `by_server` has them; last_server: the server that was last, and
        last_server_late_sec: how much later than the one before it; running: calls that had begun before
        generation stood still, and ran when the update began;
        in_flight: calls that the standstill met, those that came meanwhile, too; lost_sec: the sum of the
        time that they stood still; resumed, aborted: calls that were aborted meanwhile, whose request went on
        with another call, or did not; aborted_tokens: what the latter had written.
        None where the log does not tell.
    """
    return updates_of(weight_spans(run), served_calls(run))


def updates_of(spans: pl.DataFrame, calls: pl.DataFrame) -> list[Row]:
    """Return the rows of `weight_updates` from both tables."""
    parts = spans.filter(pl.col("part").is_in(PARTS)).to_dicts()
    groups = [group for group in _groups(parts) if any(map(_is_transfer, group))]
    rows = []
    for number, group in enumerate(groups, 1):
        row = _update(number, group)
        rows.append(row | _stalled(group, calls))
    return rows


def _is_transfer(span: Row) -> bool:
    return bool(span["part"] == "transfer")


def _transfers(group: list[Row]) -> list[Row]:
    """Return the transfers of an update; the trainer's record of all of it is one if there is no other."""
    transfers = list(filter(_is_transfer, group))
    return [span for span in transfers if not span["is_whole"]] or transfers


def _groups(spans: list[Row]) -> list[list[Row]]:
    """Cut the spans, in the order of time, where one update ends and the next begins."""
    groups: list[list[Row]] = []
    reach, paused, version = 0, False, None
    done: dict[str, int] = {}  # when processes ended a transfer that was their whole part of the update
    for span in spans:
        apart = span["start_us"] > reach + (_LONGEST_PAUSE_US if paused else _APART_US)
        logged = span["weight_version"]
        apart = apart or (span["part"] == "pause" and span["start_us"] > reach + _APART_US)
        is_next = logged is not None and version is not None and logged != version
        before = done.get(span["process"]) if span["is_single"] else None
        is_again = before is not None and before <= span["start_us"]
        if not groups or apart or is_again or (is_next and span["start_us"] >= reach):
            groups.append(_taken_out(groups[-1], before) if before is not None and is_again else [])
            reach, paused, version = 0, False, None
            done.clear()
        groups[-1].append(span)
        if span["is_single"]:
            done[span["process"]] = span["end_us"]
        version = version or logged
        reach = max(reach, span["end_us"])
        if span["part"] in ("pause", "resume"):
            paused = span["part"] == "pause"
    return groups


def _taken_out(group: list[Row], since: int) -> list[Row]:
    """Take the drains that began since then out of a group, and return them: they belong to the next one."""
    drains = [span for span in group if span["part"] == "drain" and span["start_us"] >= since]
    group[:] = [span for span in group if span not in drains]
    return drains


def _update(number: int, group: list[Row]) -> Row:
    start, end = min(span["start_us"] for span in group), max(span["end_us"] for span in group)
    parts = {part: [span for span in group if span["part"] == part] for part in PARTS}
    parts["transfer"] = _transfers(group)
    servers = by_server(group)
    return {
        "update": number,
        "weight_version": next((v for span in group if (v := span["weight_version"]) is not None), None),
        "step": next((span["step"] for span in group if span["step"] is not None), None),
        "start_us": start,
        "end_us": end,
        "duration_sec": (end - start) / 1e6,
        **{f"{part}_sec": _covered_sec(spans) if spans else None for part, spans in parts.items()},
        "is_done": not any(span["is_done"] is False for span in parts["transfer"]),
        "servers": servers,
        **_last(servers),
    }


def by_server(group: list[Row]) -> list[Row]:
    """Return the parts of one update by server, in the order in which they were done.

    The engine's own records count, where there are any; else those of what speaks to it.

    Returns:
        server; pause_sec ... flush_sec: None for a part that it did not log; start_us, end_us: of its
        transfer; is_done.
    """
    transfers = _transfers(group)
    level = next((role for role in _LEVELS if any(span["role"] == role for span in transfers)), None)
    of_servers: dict[str, list[Row]] = {}
    for span in group:
        if level is None or span["role"] == level:
            of_servers.setdefault(_server_of(span), []).append(span)
    rows = []
    for server, spans in of_servers.items():
        moved = [span for span in spans if _is_transfer(span) and not span["is_whole"]]
        if moved:
            parts = {part: [span for span in spans if span["part"] == part] for part in PARTS}
            rows.append(
                {
                    "server": server,
                    **{
                        f"{part}_sec": _covered_sec(part_spans) if part_spans else None
                        for part, part_spans in parts.items()
                    },
                    "start_us": min(span["start_us"] for span in moved),
                    "end_us": max(span["end_us"] for span in moved),
                    "is_done": not any(span["is_done"] is False for span in moved),
                }
            )
    return sorted(rows, key=lambda row: (row["end_us"], row["server"]))


def _server_of(span: Row) -> str:
    """Return the server's name; the ranks of a replica are one."""
    if as_number(span["server"]) is not None:
        return f"server {span['server']}"
    named = f"server {span['worker']}" if span["role"] == "receiver" else span["process"]
    return str(span["server"] or named)


def _last(servers: list[Row]) -> Row:
    if len(servers) < 2:
        return {"last_server": None, "last_server_late_sec": None}
    last, before = servers[-1], servers[-2]
    by_us = last["end_us"] - before["end_us"]
    return {"last_server": last["server"] if by_us else None, "last_server_late_sec": by_us / 1e6}


def last_server_longer_sec(row: Row) -> float | None:
    """Return how much later the last server of an update was by its own transfer; None if not by much.

    Args:
        row: Of `weight_updates`.
    """
    took = [(server["end_us"] - server["start_us"]) / 1e6 for server in row["servers"]]
    if len(took) < 2 or row["last_server"] is None:
        return None
    others_sec = median(took[:-1])
    late_sec = float(min(row["last_server_late_sec"], took[-1] - others_sec))
    return late_sec if late_sec >= max(_LATE_SEC, _LATE * others_sec) else None


def _covered_sec(spans: list[Row]) -> float:
    """Return the time that at least one of these spans covers."""
    covered, reach = 0, 0
    for span in sorted(spans, key=lambda span_begun: span_begun["start_us"]):
        covered += max(0, span["end_us"] - max(span["start_us"], reach))
        reach = max(reach, span["end_us"])
    return covered / 1e6


def standstill(group: list[Row]) -> tuple[int, int]:
    """Return from when to when generation stood still: from the pause, or the transfer, to the last part.

    A drain is no standstill: it waits for requests that still run.
    """
    pauses = [span["end_us"] for span in group if span["part"] == "pause"]
    transfers = [span["start_us"] for span in _transfers(group)]
    return min(pauses + transfers), max(span["end_us"] for span in group if span["part"] != "drain")


def _stalled(group: list[Row], calls: pl.DataFrame) -> Row:
    if calls.is_empty():
        return dict.fromkeys(("running", "in_flight", "lost_sec", "resumed", "aborted", "aborted_tokens"))
    begin, end = standstill(group)
    first = min(span["start_us"] for span in group)
    ran = (pl.col("start_us") < begin) & (pl.col("end_us") > first)
    met = calls.filter((pl.col("start_us") < end) & (pl.col("end_us") > begin))
    stood = pl.min_horizontal("end_us", pl.lit(end)) - pl.max_horizontal("start_us", pl.lit(begin))
    ended = calls.filter((pl.col("start_us") < end) & pl.col("end_us").is_between(first, end + _APART_US))
    cut = ended.filter(pl.col("finish_reason").is_in(_ABORTED) | (pl.col("error") == "CancelledError"))
    went_on = calls.filter(pl.col("start_us") >= begin).drop_nulls("request_id")
    gone = cut.join(went_on, on="request_id", how="anti")
    tells_ends = bool(calls["finish_reason"].count() or calls["error"].count())
    tokens = _sum(gone["completion_tokens"]) if len(gone) else 0
    return {
        "running": len(calls.filter(ran)),
        "in_flight": len(met),
        "lost_sec": float(met.select(stood.sum()).item() or 0) / 1e6,
        "resumed": len(cut) - len(gone) if tells_ends else None,
        "aborted": len(gone) if tells_ends else None,
        "aborted_tokens": tokens if tells_ends else None,
    }


def _sum(tokens: pl.Series) -> int | None:
    return int(tokens.sum()) if tokens.count() else None


def missing_of(rows: list[Row]) -> list[str]:
    """Return what the log would need to answer fully, as sentences; [] if nothing is missing.

    Args:
        rows: Of `weight_updates`.
    """
    if not rows:
        return [_NO_UPDATE]
    absent = [part for part in PARTS if all(row[f"{part}_sec"] is None for row in rows)]
    counted = rows[0]["in_flight"] is not None
    lacks = {
        _NO_CALL: not counted,
        _NO_END: counted and rows[0]["aborted"] is None,
        _NO_SERVER: not any(row["servers"] for row in rows),
        _NO_VERSION: all(row["weight_version"] is None for row in rows),
        _NO_PART.format(parts=" or ".join(absent)): bool(absent),
    }
    return [sentence for sentence, lacking in lacks.items() if lacking]
