"""Ask NVIDIA's driver about GPUs by its own library: no package is needed, and no CUDA context is made.

The functions, structures and constants are those of `nvml.h`. A function that an older driver lacks, or that
a GPU does not support, gives None. Energy (3 ms a call) and PCIe throughput (21 ms) are not asked for.
"""

import ctypes
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

_LIBRARY: Final = "libnvidia-ml.so.1"
_TEXT_BYTES: Final = 128
_SM_CLOCK: Final = 1  # nvmlClockType_t
_MEMORY_CLOCK: Final = 2
#: Why a clock is below its highest, by the bits of nvmlClocksEventReasons.
_LIMITS: Final[Mapping[int, str]] = {
    0x001: "idle",
    0x002: "application_clocks",
    0x004: "power_cap",
    0x008: "hardware_slowdown",
    0x010: "sync_boost",
    0x020: "thermal_slowdown",
    0x040: "hardware_thermal_slowdown",
    0x080: "power_brake",
    0x100: "display_clocks",
}
_LIMIT_BITS: Final = 64


_Result = TypeVar("_Result", ctypes.c_uint, ctypes.c_ulonglong, ctypes.c_void_p, "_Utilization", "_Memory")


class NvmlError(Exception):
    """NVML is missing, or did not answer."""


class GpuDevice(NamedTuple):
    """What a GPU is."""

    name: str | None
    memory_bytes: int | None


class GpuReading(NamedTuple):
    """What a GPU does now; None where it does not tell.

    Attributes:
        busy_share: Of the driver's last sampling period, the share in which a kernel ran.
        memory_used_bytes: Of all processes.
        power_watts: Of the whole board.
        sm_clock_mhz, memory_clock_mhz: Clocks now.
        clock_limits: What keeps its clocks down, such as "power_cap"; "idle" if nothing runs.
    """

    busy_share: float | None
    memory_used_bytes: int | None
    power_watts: float | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    clock_limits: list[str] | None


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class Nvml:
    """The driver's library, and a handle of each GPU that this process can see.

    Args:
        library: The loaded library; None loads it.

    Attributes:
        driver: The version of the driver.
        devices: What each GPU is.

    Raises:
        NvmlError: There is no such library, or no GPU.
    """

    def __init__(self, library: Any = None) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY) if library is None else library
        except OSError as error:
            raise NvmlError(str(error)) from error
        if not self._succeeds("nvmlInit_v2"):
            raise NvmlError(f"{_LIBRARY}: nvmlInit_v2 failed")
        self.driver = self._text("nvmlSystemGetDriverVersion")
        count = self._number("nvmlDeviceGetCount_v2") or 0
        self._handles = [handle for index in range(count) if (handle := self._handle(index)) is not None]
        if not self._handles:
            self._succeeds("nvmlShutdown")
            raise NvmlError("no GPU")
        self.devices = [self._device(handle) for handle in self._handles]

    def read(self) -> list[GpuReading]:
        """Return what each GPU does now, in the order of `devices`."""
        return [self._reading(handle) for handle in self._handles]

    def _handle(self, index: int) -> ctypes.c_void_p | None:
        handle = ctypes.c_void_p()
        return self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), result=handle)

    def _device(self, handle: ctypes.c_void_p) -> GpuDevice:
        memory = self._memory(handle)
        return GpuDevice(self._text("nvmlDeviceGetName", handle), None if memory is None else memory.total)

    def _reading(self, handle: ctypes.c_void_p) -> GpuReading:
        busy = self._call("nvmlDeviceGetUtilizationRates", handle, result=_Utilization())
        memory = self._memory(handle)
        milliwatts = self._number("nvmlDeviceGetPowerUsage", handle)
        return GpuReading(
            busy_share=None if busy is None else busy.gpu / 100,
            memory_used_bytes=None if memory is None else memory.used,
            power_watts=None if milliwatts is None else milliwatts / 1000,
            sm_clock_mhz=self._number("nvmlDeviceGetClockInfo", handle, ctypes.c_uint(_SM_CLOCK)),
            memory_clock_mhz=self._number("nvmlDeviceGetClockInfo", handle, ctypes.c_uint(_MEMORY_CLOCK)),
            clock_limits=self._clock_limits(handle),
        )

    def _memory(self, handle: ctypes.c_void_p) -> _Memory | None:
        return self._call("nvmlDeviceGetMemoryInfo", handle, result=_Memory())

    def _clock_limits(self, handle: ctypes.c_void_p) -> list[str] | None:
        # The name before driver 535; later ones have both.
        bits = self._call("nvmlDeviceGetCurrentClocksThrottleReasons", handle, result=ctypes.c_ulonglong())
        if bits is None:
            return None
        set_bits = [1 << place for place in range(_LIMIT_BITS) if bits.value >> place & 1]
        return [_LIMITS.get(bit, f"bit_{bit:#x}") for bit in set_bits]

    def _number(self, function: str, *arguments: Any) -> int | None:
        number = self._call(function, *arguments, result=ctypes.c_uint())
        return None if number is None else int(number.value)

    def _text(self, function: str, *arguments: Any) -> str | None:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        is_known = self._succeeds(function, *arguments, text, ctypes.c_uint(_TEXT_BYTES))
        return text.value.decode(errors="replace") if is_known else None

    def _call(self, function: str, *arguments: Any, result: _Result) -> _Result | None:
        """Return the result that a function filled; None if the function is missing or fails."""
        return result if self._succeeds(function, *arguments, ctypes.byref(result)) else None

    def _succeeds(self, name: str, *arguments: Any) -> bool:
        function = getattr(self._library, name, None)
        return function is not None and function(*arguments) == 0
