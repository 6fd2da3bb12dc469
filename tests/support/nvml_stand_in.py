"""A stand-in for NVIDIA's libnvidia-ml.so.1, for tests without a GPU."""
# ruff: noqa: N802, N815 - the names are those of NVML's functions

import ctypes
from typing import Any

NOT_SUPPORTED = 3


class StandInForNvml:
    """A stand-in for libnvidia-ml.so.1: two GPUs, of which the second does not tell its power."""

    def __init__(self, gpus: int = 2) -> None:
        self.gpus = gpus
        self.is_shut_down = False

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlShutdown(self) -> int:
        self.is_shut_down = True
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, length: Any) -> int:
        text.value = b"570.1"
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = self.gpus
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        handle._obj.value = 100 + index.value
        return 0

    def nvmlDeviceGetName(self, handle: Any, text: Any, length: Any) -> int:
        text.value = b"NVIDIA H200 (a stand-in)"
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:
        rates._obj.gpu = handle.value - 50
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.total, memory._obj.used = 1000, 400
        return 0

    def nvmlDeviceGetPowerUsage(self, handle: Any, milliwatts: Any) -> int:
        milliwatts._obj.value = 430_500
        return 0 if handle.value == 100 else NOT_SUPPORTED

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, mhz: Any) -> int:
        mhz._obj.value = {1: 1980, 2: 3201}[kind.value]
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, bits: Any) -> int:
        assert isinstance(bits._obj, ctypes.c_ulonglong)
        bits._obj.value = 0x4 | 0x1000
        return 0


class OldStandInForNvml(StandInForNvml):
    """A stand-in for the library of a driver that lacks a function."""

    nvmlDeviceGetCurrentClocksThrottleReasons = property()  # type: ignore[assignment]
