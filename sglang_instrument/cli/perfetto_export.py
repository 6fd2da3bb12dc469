"""Put a run, and the traces of its engines, into one Perfetto file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sglang_instrument.errors import InstrumentError

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run
    from sglang_instrument.report.perfetto.packets import Packets


def merge(
    target: Path,
    run: Run | None,
    traces: Path | None,
    steps: list[int] | None = None,
    validate: bool | None = None,
    progress: Callable[[int, int], object] | None = None,
    rank: str | None = None,
) -> list[str]:
    """Write a Perfetto file that is there only when it is whole; return what to tell a person.

    Args:
        target: The file; it must not be there yet.
        run: The run whose events are written, if any.
        traces: A folder of torch profilers' traces, or one of them, if any.
        steps: Only these steps of the run.
        validate: Only validation (True) or training (False).
        progress: Called with the number of steps and files written, and with the number of all.
        rank: Only the traces of this rank.

    Raises:
        InstrumentError: The target exists, or a trace that has no clock shall be aligned with a run.
    """
    from sglang_instrument.report.perfetto.trace import write_file

    if target.exists():
        raise InstrumentError(f"{target} exists; nothing is overwritten")
    said: list[str] = []

    def write(packets: Packets) -> None:
        window: tuple[int, int] | None = None
        hosts: dict[str, int] = {}
        if run is not None:
            window, hosts = _write_run(packets, run, steps, validate, progress, said)
        if traces is not None:
            _write_traces(packets, traces, window, hosts, progress, rank, said)

    try:
        write_file(target, write)
    except OSError as error:
        raise InstrumentError(f"{target} cannot be written: {error.strerror or error}") from error
    said.append(f"{target}: {target.stat().st_size / 1e6:,.1f} MB; open it at https://ui.perfetto.dev")
    return said


def _write_run(
    packets: Packets,
    run: Run,
    steps: list[int] | None,
    validate: bool | None,
    progress: Callable[[int, int], object] | None,
    said: list[str],
) -> tuple[tuple[int, int] | None, dict[str, int]]:
    """Write the run; return its time window and by how much each host's clock is ahead, in nanoseconds."""
    from sglang_instrument.analysis.answers.engine.round_trips import hosts_ahead_us
    from sglang_instrument.report.perfetto.trace import write_run

    if steps is not None:
        run.demand_records(steps, validate=validate)
    written = write_run(packets, run, steps, validate, progress)
    said.append(
        f"{written.slices:,} spans, {written.instants:,} instant events, {written.requests:,} request tracks"
    )
    if written.open:
        said.append(f"{written.open:,} spans are unended; their tracks end when they were last reported")
    shifted = written.offsets_sec
    if shifted:
        named = ", ".join(f"{process} {sec:+.3f} s" for process, sec in sorted(shifted.items()))
        said.append(f"clocks were aligned: {named}")
    ahead = {name: round(sec * 1e6) for name, sec in (shifted or {}).items()}
    return written.window_ns, {host: host_us * 1000 for host, host_us in hosts_ahead_us(run, ahead).items()}


def _write_traces(
    packets: Packets,
    traces: Path,
    window: tuple[int, int] | None,
    hosts_ahead_ns: Mapping[str, int],
    progress: Callable[[int, int], object] | None,
    rank: str | None,
    said: list[str],
) -> None:
    import polars as pl

    from sglang_instrument.report.perfetto.kernels import write_events
    from sglang_instrument.traces.answers import find_traces, of_rank, rank_of
    from sglang_instrument.traces.table import read_trace

    files = of_rank(find_traces(traces), rank)
    named: set[str] = set()
    for number, file in enumerate(files):
        trace = read_trace(file)
        if window is not None and not trace.has_clock:
            raise InstrumentError(
                f"{file} has no start time (baseTimeNanoseconds) and cannot be aligned with a run; "
                "leave LOGS out to write the traces alone"
            )
        alone = rank_of(trace) not in named
        named.add(rank_of(trace))
        # Ranks of several engines share names; their files do not.
        name = f"engine {rank_of(trace)}" + ("" if alone else f" ({file.name})")
        ahead = hosts_ahead_ns.get(trace.header.host or "", 0)
        moved = trace.events.with_columns(pl.col("start_ns", "end_ns") - ahead) if ahead else trace.events
        count = write_events(packets, name, number, moved, trace.lanes, window)
        said.append(f"{file.name}: {count:,} of {len(trace.events):,} events")
        if trace.header.truncated:
            said.append(f"{file.name} is cut short; the events in it were written")
        if progress is not None:
            progress(number + 1, len(files))
