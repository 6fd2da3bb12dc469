"""Analyse the traces of the engines' profilers, alone or beside a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sglang_instrument.analysis.tables.profiling.traces import (
    CATEGORIES,
    COPIES,
    GAP_SIZES,
    GAPS,
    GRAPHS,
    IDLE_IN_STEPS,
    KERNELS,
    OPERATORS,
    RANKS,
    STAGES,
    STREAMS,
    USE,
)
from sglang_instrument.analysis.tables.table import Table
from sglang_instrument.cli.answer import Key
from sglang_instrument.cli.numbers import duration
from sglang_instrument.cli.tables import print_json, print_line, print_rows, reading
from sglang_instrument.errors import InstrumentError
from sglang_instrument.plain_text import listed

if TYPE_CHECKING:
    from sglang_instrument.traces.answers import Analysis, TraceAnalysis

HELP: Final = """\
Analyse the traces that the torch profilers of SGLang and vLLM write; `profile capture` makes some.

    sglang-instrument trace /tmp/sglang_profile
    sglang-instrument trace /tmp/sglang_profile --run logs/gsm8k_600 --rank TP-0 --top 10

It shows GPU busy and idle time, kernels, communication and how much of it runs alone, prefill and decode,
idle gaps and the CPU work during them, CUDA graphs, streams and copies; of several ranks, which one the
others wait for; with --run, what the requests waited for while the engine was idle.

    what the GPU did
    category       share %    count  total s
    gemm              61.2   18,432     4.18
    communication     22.0    4,096     1.50

A file may have gigabytes, be compressed by gzip, or be cut short. docs/reference/kernel-traces.md defines
each number. To look at traces beside a run: `export LOGS --perfetto FILE --traces DIR`."""

#: Tables of one trace in the order in which they are shown, by their keys in --json: title and table.
_SHOWN: Final = {
    "categories": ("what the GPU did", CATEGORIES),
    "kernels": ("kernels", KERNELS),
    "stages": ("prefill and decode", STAGES),
    "gaps": ("longest idle times, and the CPU work over them", GAPS),
    "gap_sizes": ("idle times by length", GAP_SIZES),
    "graphs": ("CUDA graphs", GRAPHS),
    "streams": ("streams", STREAMS),
    "copies": ("copies", COPIES),
    "cpu_ops": ("operators on the CPU, by their own time", OPERATORS),
}
TABLES: Final = (RANKS, *(table for _, table in _SHOWN.values()), IDLE_IN_STEPS)
_TRACE: Final = {
    "file": Key("string", "its path"),
    "rank": Key("string", "as in the file's name, such as TP-0; else the rank that the trace names"),
    "stage": Key("string", "prefill or decode, if the file holds only one of them"),
    "profile_id": Key("string", "the part of the name that the files of one capture share"),
    "start_us": Key("integer", "its first event that counts, since the Unix epoch; null without a clock"),
    "window_sec": Key("number", "from the first work on the GPU to the end of the last"),
    "events": Key("integer", "how many were read"),
    "truncated": Key("boolean", "whether the file ends early"),
    "broken": Key("integer", "events that could not be decoded"),
    "host": Key("string", "its name; null if the trace does not tell it"),
    "devices": Key("array", "names of the GPUs"),
    "on_gpu": Key("boolean", "whether it has work of a GPU"),
    "is_missing_gpu": Key("boolean", "whether it has none, though it has GPUs, or calls to them, or nothing"),
    "other_kinds": Key("object", "how many events of kinds that do not count, by category"),
    "use": Key(Table("use", "how the time of the trace was used", USE), is_row=True),
    **{name: Key(table) for name, (_, table) in _SHOWN.items()},
}
ANSWER: Final = {
    "folder": Key("string", "the folder, or the file"),
    "slow": Key("string", "the rank that the others wait for; null if none is named"),
    "sentence": Key("string", "why this rank is slow, or why no rank is named"),
    "ranks": Key(RANKS),
    "traces": Key(_TRACE, "each trace", is_list=True),
    "steps": Key(IDLE_IN_STEPS),
    "unreadable": Key("object", "why a file is no trace, or ends before the first event, by file"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `trace`."""
    parser.add_argument("traces", metavar="DIR", type=Path, help="a folder of traces, or one trace")
    parser.add_argument("--run", type=Path, metavar="LOGS", help="the run of these traces: logs/EXPERIMENT")
    parser.add_argument("--rank", metavar="RANK", help="only the traces of this rank: TP-0, or 0")
    parser.add_argument("--top", type=int, default=15, metavar="N", help="rows of a table (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print what the traces show; return 1 if one of them could not be read, or lacks the GPU."""
    from sglang_instrument.analysis.run.opening import Run
    from sglang_instrument.cli.traces_beside_run import beside_run, trace_rows
    from sglang_instrument.traces.answers import analyse

    if args.top < 1:
        raise InstrumentError(f"--top must be at least 1, got {args.top}")
    with reading("MB") as progress:
        analysis = analyse(
            args.traces, args.top, args.rank, lambda done, all_: progress(done >> 20, all_ >> 20)
        )
        joined = beside_run(analysis, Run.open(args.run)) if args.run else []
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
    rows = [{**row, "several": several} for row in analysis.ranks]
    print_rows(RANKS, rows, title=f"{analysis.folder}: {len(rows)} traces")
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
    # The long tables have --top rows.
    shown = [name for name in _SHOWN if trace.tables[name] and not (trace.on_gpu and name == "cpu_ops")]
    for name in shown:
        title, table = _SHOWN[name]
        print_rows(table, trace.tables[name], title=f"\n{title}", explained=name == shown[-1])


def _sentence(trace: TraceAnalysis) -> str:
    use = trace.use
    if trace.is_missing_gpu:
        return "no GPU events, so nothing about the GPU is known: did the profiler record its activities?"
    if not trace.on_gpu:
        return f"no GPU events; the engine was busy {use['busy_share']:.0%}, idle {duration(use['idle_sec'])}"
    return (
        f"the GPU was busy {use['busy_share']:.1%}, idle {duration(use['idle_sec'])}; communication "
        f"{use['communication_share']:.1%} of the busy time: {duration(use['communication_sec'])}, "
        f"{duration(use['communication_alone_sec'])} of it while nothing was computed"
    )
