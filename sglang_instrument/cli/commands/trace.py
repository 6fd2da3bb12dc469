"""Analyse the traces of the engines' profilers, alone or beside a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.cli.numbers import duration
from sglang_instrument.cli.tables import print_json, print_line, print_table, reading
from sglang_instrument.errors import InstrumentError
from sglang_instrument.plain_text import listed

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
    """Print what the traces show; return 1 if one of them could not be read, or lacks the GPU."""
    from sglang_instrument.analysis.run.opening import open_run
    from sglang_instrument.cli.traces_beside_run import beside_run, trace_rows
    from sglang_instrument.traces.answers import analyse

    if args.top < 1:
        raise InstrumentError(f"--top must be at least 1, got {args.top}")
    with reading("MB") as progress:
        analysis = analyse(
            args.traces, args.top, args.rank, lambda done, all_: progress(done >> 20, all_ >> 20)
        )
        joined = beside_run(analysis, open_run(args.run)) if args.run else []
    if args.json:
        print_json(trace_rows(analysis, joined))
        return _exit_code(analysis)
    _print(analysis)
    for step in joined:
        print_line(step.sentence)
    if args.run and not joined:
        print_line(f"{args.run}: no step ran while the traces were recorded, or the traces have no clock")
    for reason in analysis.unreadable.values():
        print_line(f"left out: {reason}")
    return _exit_code(analysis)


def _exit_code(analysis: Analysis) -> int:
    """Return 1 if a trace could not be read, or has no work of a GPU although one was there."""
    return int(bool(analysis.unreadable) or any(trace.is_missing_gpu for trace in analysis.traces))


def _print(analysis: Analysis) -> None:
    if len(analysis.traces) > 1:
        _print_ranks(analysis)
    # Ranks do the same work: one in detail and all in the comparison fit a screen.
    shown = analysis.traces if len(analysis.traces) <= 2 else [_detailed(analysis)]
    for trace in shown:
        _print_trace(trace)
    if len(shown) < len(analysis.traces):
        print_line(
            f"{shown[0].rank} of {len(analysis.traces)} traces in detail; another: --rank RANK; all: --json"
        )


def _detailed(analysis: Analysis) -> TraceAnalysis:
    return next((trace for trace in analysis.traces if trace.rank == analysis.slow), analysis.traces[0])


def _print_ranks(analysis: Analysis) -> None:
    several = len({row["engine"] for row in analysis.ranks}) > 1
    rows = [
        (
            " ".join(filter(None, (row["engine"] if several else "", row["rank"], row["stage"]))),
            row["window_sec"],
            row["busy"],
            *(row.get(f"{name}_sec") for name in ("compute", "communication", "exposed")),
        )
        for row in analysis.ranks
    ]
    print_table(_RANKS, rows, title=f"{analysis.folder}: {len(rows)} traces")
    print_line(analysis.sentence)


def _print_trace(trace: TraceAnalysis) -> None:
    who = f"{trace.rank}{f' {trace.stage}' if trace.stage else ''}, {duration(trace.window_sec)}"
    if trace.devices:
        who += f", {trace.devices[0]}"
    for line in ("", trace.file, f"{who}: {_sentence(trace)}"):
        print_line(line)
    if trace.truncated:
        print_line("the file is cut short; only the events in it count: has the profiler finished writing?")
    if trace.broken:
        print_line(f"{trace.broken:,} events could not be decoded and are left out")
    if trace.other_kinds and (trace.is_missing_gpu or not trace.on_gpu):
        kinds = sorted(trace.other_kinds.items(), key=lambda kind: -kind[1])
        print_line(f"kinds that are not known: {listed([f'{name} ({count:,})' for name, count in kinds], 5)}")
    for name, (title, columns) in _TABLES.items():
        rows = trace.tables[name]  # the long tables have --top rows
        if rows and not (trace.on_gpu and name == "cpu_ops"):
            cells = [tuple(_cell(row.get(key)) for key in columns) for row in rows]
            print_table(list(columns.values()), cells, title=f"\n{title}")


def _sentence(trace: TraceAnalysis) -> str:
    use = trace.use
    if trace.is_missing_gpu:
        return "no GPU events, so nothing about the GPU is known: did the profiler record its activities?"
    if not trace.on_gpu:
        return f"no GPU events; the engine was busy {use['busy']:.0%}, idle {duration(use['idle_sec'])}"
    return (
        f"the GPU was busy {use['busy']:.1%}, idle {duration(use['idle_sec'])}; communication "
        f"{use['communication']:.1%} of the busy time, {duration(use['exposed_sec'])} of its "
        f"{duration(use['communication_sec'])} exposed"
    )


def _cell(value: Any) -> Any:
    """Return a cell; names are cut in the middle: kernels have names of a thousand characters."""
    if not isinstance(value, str):
        return value
    return value if len(value) <= 64 else f"{value[:44]}…{value[-19:]}"


_RANKS: Final = (
    Column("rank", "the engine, if there are several, and the rank"),
    Column("window", "the time that the trace covers", "time"),
    Column("busy", "share of it in which the GPU (without one, the engine) was at work", "share"),
    Column("compute", "GPU time in kernels that compute", "time"),
    Column("communication", "GPU time in kernels that communicate", "time", gives_way=1),
    Column("exposed", "communication while nothing was computed", "time"),
)
_SHARE: Final = Column("share", "of the GPU's busy time", "share")
_COUNT: Final = Column("count", "how many", "count")
_TOTAL: Final = Column("total", "sum of their durations", "time")
#: Tables in the order in which they are shown: title, and the columns by the keys of their values.
_TABLES: Final[dict[str, tuple[str, dict[str, Column]]]] = {
    "categories": (
        "what the GPU did",
        {
            "category": Column("category", "a kind of kernel or copy"),
            "share": _SHARE,
            "count": _COUNT,
            "total_sec": _TOTAL,
        },
    ),
    "kernels": (
        "kernels",
        {
            "name": Column("kernel", "its name, cut in the middle"),
            "category": Column("category", "its kind", gives_way=1),
            "share": _SHARE,
            "count": _COUNT,
            "total_sec": _TOTAL,
            "mean_us": Column("mean us", "mean duration in microseconds", "number"),
        },
    ),
    "stages": (
        "prefill and decode",
        {
            "stage": Column("stage", "prefill or decode"),
            "steps": Column("steps", "batches that the engine ran", "count"),
            "step_sec": Column("on CPU", "their time on the CPU", "time"),
            "p50_ms": Column("p50 ms", "half of them took at most this long", "number"),
            "p99_ms": Column("p99 ms", "99 % of them took at most this long", "number"),
            "gpu_sec": Column("on GPU", "GPU time of what they launched", "time"),
            "gpu_share": Column("of GPU", "share of the GPU's busy time", "share"),
        },
    ),
    "gaps": (
        "longest idle times, and the CPU work over them",
        {
            "cpu": Column("on the CPU", "the CPU work that covers most of it"),
            "at_sec": Column("at", "its begin, after that of the trace", "time"),
            "duration_sec": Column("idle", "for how long no GPU stream worked", "time"),
            "covered": Column("covers", "share of it that the CPU work covers", "share"),
        },
    ),
    "gap_sizes": (
        "idle times by length",
        {"size": Column("length", "idle times from this to that long"), "count": _COUNT, "total_sec": _TOTAL},
    ),
    "graphs": (
        "CUDA graphs",
        {
            "stage": Column("stage", "prefill or decode"),
            "launches": Column("launches", "how many", "count"),
            "launch_p50_us": Column("launch p50 us", "half of the launches took at most this long", "number"),
            "gpu_p50_ms": Column("on GPU p50 ms", "half of the graphs ran at most this long", "number"),
            "gpu_p99_ms": Column("on GPU p99 ms", "99 % of the graphs ran at most this long", "number"),
            "every_p50_ms": Column("every p50 ms", "half of the launches follow within this time", "number"),
            "every_p99_ms": Column("every p99 ms", "99 % of the launches follow within this time", "number"),
        },
    ),
    "streams": (
        "streams",
        {
            "stream": Column("stream", "of CUDA"),
            "device": Column("device", "the GPU"),
            "count": _COUNT,
            "busy_sec": Column("busy", "time in which it was at work", "time"),
        },
    ),
    "copies": (
        "copies",
        {
            "name": Column("copy", "from where to where"),
            "count": _COUNT,
            "total_sec": _TOTAL,
            "bytes": Column("bytes", "of all", "count"),
            "gb_per_sec": Column("GB/s", "bytes by time", "number"),
        },
    ),
    "cpu_ops": (
        "operators on the CPU, by their own time",
        {
            "name": Column("operator", "its name, cut in the middle"),
            "count": _COUNT,
            "self_sec": Column("own", "without the operators inside", "time"),
            "total_sec": _TOTAL,
        },
    ),
}
TABLES: Final = {
    "ranks": _RANKS,
    **{title: tuple(columns.values()) for title, columns in _TABLES.values()},
}
