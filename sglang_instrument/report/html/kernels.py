"""Lay out what the engines' profilers recorded, from the rows of `trace analyze --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

Row = dict[str, Any]

_MOST_TRACES: Final = 64
_MOST_DETAILED: Final = 8
_MOST_ROWS: Final = 15
_MOST_SENTENCES: Final = 12
_LONGEST_NAME: Final = 120  # of a kernel: templates make names of a thousand characters


def kernel_section(rows: Mapping[str, Any]) -> Row:
    """Return the data of the report's section on kernels.

    Args:
        rows: folder, slow, sentence, ranks, traces, steps, unreadable, as in `trace analyze --json`.

    Returns:
        folder, slow, sentence; steps: sentences that relate idle time to steps, the most idle time first;
        of_steps: how many there are; on_gpu: whether any trace has GPU work; ranks: one row per trace, with
        the parts of its bar; traces: those with tables, the slow rank's first; of_traces: how many there are;
        unreadable: reasons.
    """
    traces: Sequence[Row] = rows["traces"]
    idle = sorted(rows["steps"], key=lambda one: -one["idle"] * one["overlap_sec"])
    detailed = sorted(traces, key=lambda one: one["rank"] != rows["slow"])[:_MOST_DETAILED]
    several = len({one["profile_id"] for one in traces}) > 1
    return {
        "folder": rows["folder"],
        "slow": rows["slow"],
        "sentence": rows["sentence"] if len(traces) > 1 else None,
        "steps": [one["sentence"] for one in idle[:_MOST_SENTENCES]],
        "of_steps": len(idle),
        "on_gpu": any(one["on_gpu"] for one in traces),
        "ranks": [_rank(one, several) for one in traces[:_MOST_TRACES]],
        "traces": [_detail(one, several) for one in detailed],
        "of_traces": len(traces),
        "unreadable": list(rows["unreadable"].values()),
    }


def _rank(one: Row, several: bool) -> Row:
    """Return how a rank's time was used, and the parts of its bar, which fill the whole window."""
    use, window = one["use"], one["window_sec"]
    if one["on_gpu"]:
        parts = {"compute": use["compute_sec"], "exposed": use["exposed_sec"]}
        parts["copy"] = max(0.0, use["busy_sec"] - sum(parts.values()))
    else:
        parts = {"compute": use["busy_sec"]}
    bar = [(name, sec, sec / window) for name, sec in parts.items() if window and sec > 0]
    return {
        **{key: use.get(key) for key in ("busy", "busy_sec", "idle_sec", "compute_sec")},
        **{key: use.get(key) for key in ("communication_sec", "exposed_sec")},
        "name": _name(one, several),
        "on_gpu": one["on_gpu"],
        "window_sec": window,
        "bar": bar,
        "truncated": one["truncated"],
    }


def _detail(one: Row, several: bool) -> Row:
    kernels = [{**row, "short": _cut(row["name"])} for row in one["kernels"][:_MOST_ROWS]]
    operators = [{**row, "short": _cut(row["name"])} for row in one["cpu_ops"][:_MOST_ROWS]]
    return {
        "name": _name(one, several),
        "file": PurePath(one["file"]).name,
        "device": one["devices"][0] if one["devices"] else None,
        "categories": one["categories"],
        "kernels": kernels,
        "operators": [] if one["on_gpu"] else operators,
        "stages": one["stages"],
        "gaps": [{**row, "cpu": _cut(row["cpu"] or "nothing recorded")} for row in one["gaps"][:5]],
    }


def _name(one: Row, several: bool) -> str:
    """Return the rank, with the engine if there are several, whose ranks have equal names."""
    engine = one["profile_id"].strip("-_.") if several else ""
    return " ".join(filter(None, (engine, one["rank"], one["stage"])))


def _cut(name: str) -> str:
    """Return a name, shortened in its middle."""
    front, back = _LONGEST_NAME * 2 // 3, _LONGEST_NAME // 3
    return name if len(name) <= _LONGEST_NAME else f"{name[:front]}…{name[-back:]}"
