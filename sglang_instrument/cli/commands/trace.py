"""Analyse the traces of the engines' profilers, alone or beside a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.cli.numbers import NOTHING, count, percent, seconds
from sglang_instrument.cli.tables import print_json, print_line, print_table, reading
from sglang_instrument.errors import InstrumentError

if TYPE_CHECKING:
    from sglang_instrument.traces.answers import Analysis, TraceAnalysis

HELP: Final = """\
Analyse the traces that the torch profilers of SGLang and vLLM write; `profile capture` makes some.

    sglang-instrument trace analyze /tmp/sglang_profile
    sglang-instrument trace analyze /tmp/sglang_profile --run logs/gsm8k_600 --rank TP-0 --top 10

It shows GPU busy and idle time, kernels, communication and its exposed part, prefill and decode, idle gaps
and the CPU work during them, CUDA graphs, streams and copies; of several ranks, which one the others wait
for; with --run, what the requests waited for while the engine was idle.

A file may have gigabytes, be compressed by gzip, or be cut short. docs/reference/kernel-traces.md defines
each number and the keys that --json prints. To look at traces beside a run:
`export LOGS --perfetto FILE --traces DIR`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `trace`."""
    parser.add_argument("action", choices=("analyze",))
    parser.add_argument("traces", metavar="DIR", type=Path, help="a folder of traces, or one trace")
    parser.add_argument("--run", type=Path, metavar="LOGS", help="the run of these traces: logs/EXPERIMENT")
    parser.add_argument("--rank", metavar="RANK", help="only the traces of this rank: TP-0, or 0")
    parser.add_argument("--top", type=int, default=15, metavar="N", help="rows of a table (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print what the traces show; return 1 if one of them could not be read."""
    from sglang_instrument.analysis.run.opening import open_run
    from sglang_instrument.cli.traces_beside_run import beside_run, trace_rows
    from sglang_instrument.traces.answers import analyse

    if args.top < 1:
        raise InstrumentError(f"--top must be at least 1, got {args.top}")
    with reading("MB") as progress:
        found = analyse(args.traces, args.top, args.rank, lambda done, all_: progress(done >> 20, all_ >> 20))
        joined = beside_run(found, open_run(args.run)) if args.run else []
    if args.json:
        print_json(trace_rows(found, joined))
        return int(bool(found.unreadable))
    _print(found)
    for one in joined:
        print_line(one.sentence)
    if args.run and not joined:
        print_line(f"{args.run}: no step ran while the traces were recorded, or the traces have no clock")
    for reason in found.unreadable.values():
        print_line(f"left out: {reason}")
    return int(bool(found.unreadable))


def _print(found: Analysis) -> None:
    if len(found.traces) > 1:
        _print_ranks(found)
    # Ranks do the same work: one in detail and all in the comparison fit a screen.
    shown = found.traces if len(found.traces) <= 2 else [_detailed(found)]
    for one in shown:
        _print_trace(one)
    if len(shown) < len(found.traces):
        print_line(
            f"{shown[0].rank} of {len(found.traces)} traces in detail; another: --rank RANK; all: --json"
        )


def _detailed(found: Analysis) -> TraceAnalysis:
    return next((one for one in found.traces if one.rank == found.slow), found.traces[0])


def _print_ranks(found: Analysis) -> None:
    several = len({row["engine"] for row in found.ranks}) > 1
    rows = [
        (
            " ".join(filter(None, (row["engine"] if several else "", row["rank"], row["stage"]))),
            seconds(row["window_sec"]),
            percent(row["busy"]),
            seconds(row.get("compute_sec")),
            seconds(row.get("communication_sec")),
            seconds(row.get("exposed_sec")),
        )
        for row in found.ranks
    ]
    columns = ("rank", "window s", "busy %", "compute s", "communication s", "exposed s")
    print_table(columns, rows, title=f"{found.folder}: {len(rows)} traces")
    print_line(found.sentence)


def _print_trace(one: TraceAnalysis) -> None:
    who = f"{one.rank}{f' {one.stage}' if one.stage else ''}, {seconds(one.window_sec)} s"
    if one.devices:
        who += f", {one.devices[0]}"
    for line in ("", one.file, f"{who}: {_sentence(one)}"):
        print_line(line)
    if one.truncated:
        print_line("the file is cut short; only the events in it count: has the profiler finished writing?")
    if one.broken:
        print_line(f"{one.broken:,} events could not be decoded and are left out")
    for name, (title, columns) in _TABLES.items():
        rows = one.tables[name]  # the long tables have --top rows
        if rows and not (one.on_gpu and name == "cpu_ops"):
            cells = [tuple(show(row.get(key)) for key, _, show in columns) for row in rows]
            print_table([head for _, head, _ in columns], cells, title=f"\n{title}")


def _sentence(one: TraceAnalysis) -> str:
    use = one.use
    if not one.on_gpu:
        return f"no GPU events; the engine was busy {use['busy']:.0%}, idle {seconds(use['idle_sec'])} s"
    return (
        f"the GPU was busy {use['busy']:.1%}, idle {seconds(use['idle_sec'])} s; communication "
        f"{use['communication']:.1%} of the busy time, {seconds(use['exposed_sec'])} s of its "
        f"{seconds(use['communication_sec'])} s exposed"
    )


def _text(value: Any) -> str:
    """Return a name, cut in its middle: kernels have names of a thousand characters."""
    words = NOTHING if value is None else str(value)
    return words if len(words) <= 64 else f"{words[:44]}…{words[-19:]}"


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


_SUMS: Final = (("share", "share %", percent), ("count", "count", count), ("total_sec", "total s", seconds))
#: Tables in the order in which they are shown: title, and key, heading and writing of each column.
_TABLES: Final[dict[str, tuple[str, tuple[tuple[str, str, Any], ...]]]] = {
    "categories": ("what the GPU did", (("category", "category", _text), *_SUMS)),
    "kernels": (
        "kernels",
        (("name", "kernel", _text), ("category", "category", _text), *_SUMS, ("mean_us", "mean us", _number)),
    ),
    "stages": (
        "prefill and decode",
        (
            ("stage", "stage", _text),
            ("steps", "steps", count),
            ("step_sec", "on CPU s", seconds),
            ("p50_ms", "p50 ms", _number),
            ("p99_ms", "p99 ms", _number),
            ("gpu_sec", "on GPU s", seconds),
            ("gpu_share", "of GPU %", percent),
        ),
    ),
    "gaps": (
        "longest idle times, and the CPU work over them",
        (
            ("cpu", "on the CPU", _text),
            ("at_sec", "at s", seconds),
            ("duration_sec", "idle s", seconds),
            ("covered", "covers %", percent),
        ),
    ),
    "gap_sizes": (
        "idle times by length",
        (("size", "length", _text), ("count", "count", count), ("total_sec", "total s", seconds)),
    ),
    "graphs": (
        "CUDA graphs",
        (
            ("stage", "stage", _text),
            ("launches", "launches", count),
            ("launch_p50_us", "launch p50 us", _number),
            ("gpu_p50_ms", "on GPU p50 ms", _number),
            ("gpu_p99_ms", "p99 ms", _number),
            ("every_p50_ms", "every p50 ms", _number),
            ("every_p99_ms", "p99 ms", _number),
        ),
    ),
    "streams": (
        "streams",
        (
            ("stream", "stream", _text),
            ("device", "device", _text),
            ("count", "count", count),
            ("busy_sec", "busy s", seconds),
        ),
    ),
    "copies": (
        "copies",
        (
            ("name", "copy", _text),
            ("count", "count", count),
            ("total_sec", "total s", seconds),
            ("bytes", "bytes", count),
            ("gb_per_sec", "GB/s", _number),
        ),
    ),
    "cpu_ops": (
        "operators on the CPU, by their own time",
        (
            ("name", "operator", _text),
            ("count", "count", count),
            ("self_sec", "own s", seconds),
            ("total_sec", "total s", seconds),
        ),
    ),
}
