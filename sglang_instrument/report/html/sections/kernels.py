"""Lay out what the engines' profilers recorded, from the rows of `trace --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

from sglang_instrument.kernel_names import cut_in_the_middle, readable_name

Row = dict[str, Any]

_MOST_TRACES: Final = 64
_MOST_DETAILED: Final = 8
_MOST_ROWS: Final = 15
_MOST_SENTENCES: Final = 12
_LONGEST_NAME: Final = 120  # of a kernel: templates make names of a thousand characters


def kernel_section(rows: Mapping[str, Any]) -> Row:
    """Return the data of the report's section on kernels.

    Args:
        rows: folder, slow, sentence, ranks, traces, steps, unreadable, as in `trace --json`.

    Returns:
        folder, slow, sentence; steps: sentences that relate idle time to steps, the most idle time first;
        of_steps: how many there are; on_gpu: whether any trace has GPU work; ranks: one row per trace, with
        the parts of its bar; traces: those with tables, the slow rank's first; of_traces: how many there are;
        unreadable: reasons.
    """
    traces: Sequence[Row] = rows["traces"]
    idle = sorted(rows["steps"], key=lambda step: -step["idle_share"] * step["overlap_sec"])
    detailed = sorted(traces, key=lambda trace: trace["rank"] != rows["slow"])[:_MOST_DETAILED]
    several = len({trace["profile_id"] for trace in traces}) > 1
    return {
        "folder": rows["folder"],
        "slow": rows["slow"],
        "sentence": rows["sentence"] if len(traces) > 1 else None,
        "steps": [step["sentence"] for step in idle[:_MOST_SENTENCES]],
        "of_steps": len(idle),
        "on_gpu": any(trace["on_gpu"] for trace in traces),
        "ranks": [_rank(trace, several) for trace in traces[:_MOST_TRACES]],
        "traces": [_detail(trace, several) for trace in detailed],
        "of_traces": len(traces),
        "unreadable": list(rows["unreadable"].values()),
    }


def _rank(trace: Row, several: bool) -> Row:
    """Return how a rank's time was used, and the parts of its bar, which fill the whole window."""
    use, window = trace["use"], trace["window_sec"]
    if trace["on_gpu"]:
        parts = {"compute": use["compute_sec"], "alone": use["communication_alone_sec"]}
        parts["copy"] = max(0.0, use["busy_sec"] - sum(parts.values()))
    else:
        parts = {"compute": use["busy_sec"]}
    bar = [(name, sec, sec / window) for name, sec in parts.items() if window and sec > 0]
    return {
        **{key: use.get(key) for key in ("busy_share", "busy_sec", "idle_sec", "compute_sec")},
        **{key: use.get(key) for key in ("communication_sec", "communication_alone_sec")},
        "name": _name(trace, several),
        "on_gpu": trace["on_gpu"],
        "window_sec": window,
        "bar": bar,
        "truncated": trace["truncated"],
    }


def _detail(trace: Row, several: bool) -> Row:
    kernels = [
        {**row, "short": readable_name(row["name"], _LONGEST_NAME)} for row in trace["kernels"][:_MOST_ROWS]
    ]
    operators = [
        {**row, "short": cut_in_the_middle(row["name"], _LONGEST_NAME)}
        for row in trace["cpu_ops"][:_MOST_ROWS]
    ]
    return {
        "name": _name(trace, several),
        "file": PurePath(trace["file"]).name,
        "device": trace["devices"][0] if trace["devices"] else None,
        "categories": trace["categories"],
        "kernels": kernels,
        "operators": [] if trace["on_gpu"] else operators,
        "stages": trace["stages"],
        "gaps": [
            {**row, "cpu": cut_in_the_middle(row["cpu"] or "nothing recorded", _LONGEST_NAME)}
            for row in trace["gaps"][:5]
        ],
    }


def _name(trace: Row, several: bool) -> str:
    """Return the rank, with the engine if there are several, whose ranks have equal names."""
    engine = trace["profile_id"].strip("-_.") if several else ""
    return " ".join(filter(None, (engine, trace["rank"], trace["stage"])))
