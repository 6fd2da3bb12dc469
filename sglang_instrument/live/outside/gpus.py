"""Read the GPUs of this host once a second while a run runs, and write down what they do.

A thread asks the driver, for a GPU in trouble may never answer. Of several followers on a host, the one that
holds the lock of `live/gpus_HOST.jsonl` writes; all show.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO, Final

from sglang_instrument.analysis.reading.records.gpu_records import (
    Gpu,
    GpuGauges,
    GpusOpened,
    file_name,
    record_line,
)
from sglang_instrument.live.outside.nvml import GpuDevice, GpuReading, Nvml, NvmlError
from sglang_instrument.safe_files.folder import SafeFolder, write_whole
from sglang_instrument.schema import GPU_GAUGES, GPUS_OPENED

_EVERY_SEC: Final = 1.0
_END_SEC: Final = 1.0


@dataclass(frozen=True)
class GpuNow:
    """What a GPU of the follower's host is, and what it does; None where it does not tell.

    Attributes:
        gpu: Its number, in the driver's order.
        name: Its model.
        busy_share: Of the driver's last sampling period, the share in which a kernel ran.
        memory_used_bytes, memory_bytes: Of all processes, and of all.
        power_watts: Of the whole board.
        sm_clock_mhz, memory_clock_mhz: The clocks.
        clock_limits: What keeps the clocks down, such as "power_cap"; "idle" if nothing runs.
    """

    gpu: int
    name: str | None
    busy_share: float | None
    memory_used_bytes: int | None
    memory_bytes: int | None
    power_watts: float | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    clock_limits: tuple[str, ...] | None


class GpuSampler:
    """Reads the GPUs of this host while a run is named.

    Args:
        folder: The run's folder.
        driver: Loads NVML; raises NvmlError where there is none.
    """

    def __init__(self, folder: Path, driver: Callable[[], Nvml] = Nvml) -> None:
        self._folder = SafeFolder(folder, ("live",))
        self._driver = driver
        self._thread: threading.Thread | None = None
        self._run_id: str | None = None
        self._wanted = threading.Event()
        self._ended = threading.Event()
        self._answered = threading.Event()
        self._newest: tuple[GpuNow, ...] = ()

    def want(self, run_id: str | None, is_running: bool) -> None:
        """Read from now on for this run, or pause while none runs."""
        self._run_id = run_id
        if not is_running:
            self._wanted.clear()
            self._newest = ()
            return
        self._wanted.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._read_on, name="gpus", daemon=True)
            self._thread.start()

    def newest(self) -> tuple[GpuNow, ...]:
        """Return what the GPUs did last; () without a GPU, or while no run runs."""
        return self._newest if self._wanted.is_set() else ()

    def wait(self, most_sec: float) -> None:
        """Wait for the first answer, if one is to come."""
        if self._thread is not None:
            self._answered.wait(most_sec)

    def close(self) -> None:
        """End; a thread whose driver does not answer is left alone."""
        self._ended.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(_END_SEC)

    def _read_on(self) -> None:
        try:
            nvml = self._driver()
        except NvmlError:
            self._answered.set()
            return
        with ExitStack() as stack:
            log = _GpuLog(self._folder, nvml, stack)
            while not self._ended.is_set():
                begun = time.monotonic()
                readings = nvml.read()
                self._newest = tuple(
                    _gpu_now(number, device, reading)
                    for number, (device, reading) in enumerate(zip(nvml.devices, readings, strict=True))
                )
                self._answered.set()
                log.write(self._run_id, readings)
                self._ended.wait(max(0.0, begun + _EVERY_SEC - time.monotonic()))
                self._wanted.wait()


def _gpu_now(number: int, device: GpuDevice, reading: GpuReading) -> GpuNow:
    limits = reading.clock_limits
    return GpuNow(
        gpu=number,
        name=device.name,
        busy_share=reading.busy_share,
        memory_used_bytes=reading.memory_used_bytes,
        memory_bytes=device.memory_bytes,
        power_watts=reading.power_watts,
        sm_clock_mhz=reading.sm_clock_mhz,
        memory_clock_mhz=reading.memory_clock_mhz,
        clock_limits=None if limits is None else tuple(limits),
    )


class _GpuLog:
    """The file of this host, written by the follower that holds its lock.

    As for sightings, a folder that cannot be written to is not the follower's trouble.
    """

    def __init__(self, folder: SafeFolder, nvml: Nvml, stack: ExitStack) -> None:
        self._folder, self._nvml, self._stack = folder, nvml, stack
        self._host = os.uname().nodename
        self._file: BinaryIO | None = None
        self._runs: list[str | None] = []

    def write(self, run_id: str | None, readings: Sequence[GpuReading]) -> None:
        """Append what the GPUs do, unless another follower writes."""
        try:
            self._file = self._file or self._opened()
            write_whole(self._file, self._lines(run_id, readings))
        except OSError:  # also where another follower holds the lock
            return

    def _opened(self) -> BinaryIO:
        name = file_name(self._host)
        with ExitStack() as opening:
            opening.enter_context(self._folder.locked(name))
            file = opening.enter_context(self._folder.changing(name, append=True))
            self._stack.enter_context(opening.pop_all())
        return file

    def _lines(self, run_id: str | None, readings: Sequence[GpuReading]) -> bytes:
        now = datetime.now(timezone.utc)
        lines = record_line(GPU_GAUGES, now, GpuGauges(*map(list, zip(*readings, strict=True))))
        if self._runs[-1:] == [run_id]:
            return lines
        self._runs.append(run_id)
        gpus = [Gpu(*device) for device in self._nvml.devices]
        opened = GpusOpened(self._host, run_id, self._nvml.driver, gpus)
        return b"\n" + record_line(GPUS_OPENED, now, opened) + lines  # after a line that may be torn
