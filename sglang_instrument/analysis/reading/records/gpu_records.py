"""Define and read what followers record of GPUs: `live/gpus_HOST.jsonl` of a run.

A follower that begins writes what the GPUs of its host are; then, once a second while the run runs, what they
do: a list for each quantity, an item for each GPU.
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from sglang_instrument.regular_files import open_regular
from sglang_instrument.schema import GPU_GAUGES, GPUS_OPENED

_FIRST: Final = "gpus_"
_LAST: Final = ".jsonl"


class Gpu(msgspec.Struct):
    """What a GPU is; None where the driver does not tell."""

    name: str | None = None
    memory_bytes: int | None = None


class GpusOpened(msgspec.Struct):
    """What the GPUs of a host are, and for which run they are read.

    Attributes:
        host: The name of the host.
        run_id: The run; None where no header tells.
        driver: The version of the driver.
        gpus: The GPUs, in the driver's order.
    """

    host: str
    run_id: str | None
    driver: str | None
    gpus: list[Gpu]


class GpuGauges(msgspec.Struct):
    """What the GPUs do at one time: an item a GPU; None where it does not tell.

    Attributes:
        busy_share: Of the driver's last sampling period, the share in which a kernel ran.
        memory_used_bytes: Of all processes.
        power_watts: Of the whole board.
        sm_clock_mhz, memory_clock_mhz: The clocks.
        clock_limits: What keeps the clocks down, such as "power_cap"; "idle" if nothing runs.
    """

    busy_share: list[float | None]
    memory_used_bytes: list[int | None]
    power_watts: list[float | None]
    sm_clock_mhz: list[int | None]
    memory_clock_mhz: list[int | None]
    clock_limits: list[list[str] | None]


class GpuRow(NamedTuple):
    """What one GPU did at one time, with what it is."""

    run_id: str | None
    host: str
    gpu: int
    name: str | None
    at_us: int
    busy_share: float | None
    memory_used_bytes: int | None
    memory_bytes: int | None
    power_watts: float | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    clock_limits: list[str] | None


class _Record(msgspec.Struct):
    timestamp: datetime
    event: str
    extra: msgspec.Raw


def file_name(host: str) -> str:
    """Return the name of the file of a host in `live`."""
    return f"{_FIRST}{host.replace('/', '_')}{_LAST}"


def record_line(event: str, timestamp: datetime, extra: GpusOpened | GpuGauges) -> bytes:
    """Return a line of the file."""
    return msgspec.json.encode({"timestamp": timestamp, "event": event, "extra": extra}) + b"\n"


def gpus_opened(folder: Path) -> list[GpusOpened]:
    """Return what the GPUs of each host are, as followers wrote it, in the order of files and lines."""
    return [opened for opened, _, gauges in _records(folder) if gauges is None]


def gpu_rows(folder: Path) -> Iterator[GpuRow]:
    """Yield what each GPU did, second by second; torn and foreign lines are left out."""
    for opened, timestamp, gauges in _records(folder):
        if gauges is None:
            continue
        at_us = round(timestamp.timestamp() * 1e6)
        for number, (gpu, *values) in enumerate(zip(opened.gpus, *_lists(gauges), strict=False)):
            busy, used, watts, sm_clock, memory_clock, limits = values
            yield GpuRow(
                *(opened.run_id, opened.host, number, gpu.name, at_us, busy, used, gpu.memory_bytes),
                *(watts, sm_clock, memory_clock, limits),
            )


def _lists(gauges: GpuGauges) -> list[list[Any]]:
    return [getattr(gauges, name) for name in gauges.__struct_fields__]


def _records(folder: Path) -> Iterator[tuple[GpusOpened, datetime, GpuGauges | None]]:
    """Yield each record with the one that says what the GPUs are; None stands for that one itself."""
    try:
        paths = sorted((folder / "live").glob(f"{_FIRST}*{_LAST}"))
    except OSError:
        return
    for path in paths:
        yield from _records_in(path)


def _records_in(path: Path) -> Iterator[tuple[GpusOpened, datetime, GpuGauges | None]]:
    opened: GpusOpened | None = None
    try:
        with open_regular(path) as file:
            for line in file:
                record = _decoded(line)
                if record is None:
                    continue
                if isinstance(record[1], GpusOpened):
                    opened = record[1]
                    yield opened, record[0], None
                elif opened is not None:
                    yield opened, record[0], record[1]
    except OSError:
        return


def _decoded(line: bytes) -> tuple[datetime, GpusOpened | GpuGauges] | None:
    try:
        record = msgspec.json.decode(line, type=_Record)
        if record.event == GPUS_OPENED:
            return record.timestamp, msgspec.json.decode(record.extra, type=GpusOpened)
        if record.event == GPU_GAUGES:
            return record.timestamp, msgspec.json.decode(record.extra, type=GpuGauges)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    return None
