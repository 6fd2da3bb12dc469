"""Write a run for other programs: as Parquet files, a Perfetto trace, OpenTelemetry's spans, or an agenda."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from sglang_instrument.cli import select
from sglang_instrument.cli.tables import print_line, reading
from sglang_instrument.errors import InstrumentError

HELP: Final = """\
Write a run as Parquet files, as a Perfetto trace, as spans of OpenTelemetry, or as an agenda to replay.

    sglang-instrument export logs/gsm8k_600 --parquet gsm8k_600_parquet
    sglang-instrument export logs/gsm8k_600 --perfetto all.pftrace --traces /tmp/sglang_profile
    sglang-instrument export --perfetto kernels.pftrace --traces /tmp/sglang_profile     # without a run
    sglang-instrument export logs/gsm8k_600 --otlp gsm8k_600.otlp.jsonl --step 67
    sglang-instrument export logs/gsm8k_600 --agenda gsm8k_600.agenda.jsonl --every 4

--parquet    parts/*/records.parquet, and requests, turns, steps, workers, engine_requests, processes and
             findings.parquet: see docs/reference/dataset.md. Polars, DuckDB and all commands read the folder.
             A second call writes only the parts whose log files changed
--perfetto   a track a request, below its worker; requests in flight; event loop lag; what profilers saw.
             Clocks of hosts are aligned. Open it at https://ui.perfetto.dev (in the browser)
--otlp       requests, engine calls and tools as lines of OTLP JSON (OpenTelemetry's GenAI conventions)
--agenda     what `twin` replays as JSON lines: a turn a line, with its tokens and waits, and a line a step"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `export`."""
    parser.add_argument("logs", metavar="LOGS", type=Path, nargs="?", help=select.LOGS_HELP)
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument(
        "--parquet",
        type=Path,
        metavar="FOLDER",
        help="a dataset",
    )
    form.add_argument("--perfetto", type=Path, metavar="FILE", help="a trace, in a new file")
    form.add_argument("--otlp", type=Path, metavar="FILE", help="spans of OpenTelemetry")
    select.add_step(parser, "only this step, or these: 60-67; repeatable")
    parser.add_argument("--validate", action="store_true", help="only validation")
    form.add_argument("--agenda", type=Path, metavar="FILE", help="turns, with tokens and waits")
    form.add_argument("--mooncake", type=Path, metavar="FILE", help="the same as a trace of Mooncake")
    parser.add_argument("--every", type=int, metavar="N", help="of an agenda: only each N-th group")
    parser.add_argument("--force", action="store_true", help="overwrite (not of --parquet, --perfetto)")
    parser.add_argument("--traces", type=Path, metavar="DIR", help="with --perfetto: profilers' traces")
    parser.add_argument("--rank", metavar="RANK", help="with --traces: only this rank: TP-0, or 0")
    select.add_ray(parser)


def run(args: argparse.Namespace) -> int:
    """Write what was asked for."""
    if args.agenda is not None or args.mooncake is not None:
        return _write_agenda(args)
    if args.force and args.otlp is None:
        raise InstrumentError("--force goes with --otlp, --agenda and --mooncake")
    if args.every is not None:
        raise InstrumentError("--every goes with --agenda and --mooncake")
    if args.ray is not None and args.parquet is None:
        raise InstrumentError("--ray goes with --parquet; for other files, `collect` the run first")
    if args.otlp is not None:
        return _write_otlp(args)
    if args.perfetto is None:
        for name in ("traces", "rank"):
            if getattr(args, name):
                raise InstrumentError(f"--{name} goes with --perfetto")
        for name in ("step", "validate"):
            if getattr(args, name):
                raise InstrumentError(f"--{name} goes with --perfetto or --otlp; Parquet has all steps")
        if args.logs is None:
            raise InstrumentError("--parquet needs LOGS, the experiment's folder")
        return _write_parquet(args)
    if args.rank and args.traces is None:
        raise InstrumentError("--rank goes with --traces")
    if args.logs is None and args.traces is None:
        raise InstrumentError("--perfetto needs LOGS, the experiment's folder, or --traces DIR")
    if args.logs is None and (args.validate or args.step):
        raise InstrumentError("--step and --validate choose from a run: give LOGS, the experiment's folder")
    return _write_perfetto(args)


def _write_otlp(args: argparse.Namespace) -> int:
    from sglang_instrument.analysis.answers.engine.gateway_turns import with_gateway_turns
    from sglang_instrument.analysis.run.opening import Run
    from sglang_instrument.cli import otlp_export

    for name in ("traces", "rank"):
        if getattr(args, name):
            raise InstrumentError(f"--{name} goes with --perfetto")
    if args.logs is None:
        raise InstrumentError("--otlp needs LOGS, the experiment's folder")
    with reading("steps") as progress:
        opened = with_gateway_turns(Run.open(args.logs))
        steps = select.steps_of(opened, args, opened.everything)
        validate = args.validate or None
        said = otlp_export.write(args.otlp, opened, steps, validate, progress, force=args.force)
    select.tell_pruned(opened, steps)
    for line in said:
        print_line(line)
    return 0


def _write_agenda(args: argparse.Namespace) -> int:
    from sglang_instrument.twin.agendas.export import write

    for name in ("traces", "rank", "ray", "validate"):
        if getattr(args, name):
            raise InstrumentError(f"--{name} does not go with --agenda and --mooncake")
    if args.logs is None:
        raise InstrumentError("--agenda needs LOGS, the experiment's folder")
    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress)
        steps = select.steps_of(opened, args, opened.everything)
        said = write(
            opened, args.agenda, args.mooncake, steps, 1 if args.every is None else args.every, args.force
        )
    select.tell_pruned(opened, steps)
    for line in said:
        print_line(line)
    return 0


def _write_perfetto(args: argparse.Namespace) -> int:
    from sglang_instrument.analysis.run.opening import Run
    from sglang_instrument.cli.perfetto_export import merge

    with reading("steps and traces") as progress:
        opened = None if args.logs is None else Run.open(args.logs)
        steps = None if opened is None else select.steps_of(opened, args, opened.everything)
        validate = args.validate or None
        said = merge(args.perfetto, opened, args.traces, steps, validate, progress, args.rank)
    if opened is not None:
        select.tell_pruned(opened, steps)
    for line in said:
        print_line(line)
    return 0


def _write_parquet(args: argparse.Namespace) -> int:
    """Write what changed since the last call."""
    from sglang_instrument.analysis.dataset.export import export_dataset

    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress)
        written = export_dataset(opened, args.parquet, progress)
    select.tell_pruned(opened, left=select.WRITTEN_BEFORE)
    files = f"{written.written:,} of {written.files:,} parts written"
    print_line(f"{written.rows:,} events in {args.parquet}: {files}")
    return 0
