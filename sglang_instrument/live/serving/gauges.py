"""Describe schedulers and GPUs as metrics of OpenMetrics."""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import Metric

from sglang_instrument.live.serving.families import Value, gauge
from sglang_instrument.live.state import GpuNow, SchedulerNow, Snapshot

_OF_SCHEDULER: Final = ("scheduler",)
_OF_GPU: Final = ("gpu", "model")
_HERTZ: Final = 1e6  # of a MHz


def of_schedulers(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield how full each scheduler is; requests are 0 where no batch runs."""

    def values(read: Callable[[SchedulerNow], float | None]) -> Iterator[Value]:
        return (((scheduler.scheduler,), read(scheduler)) for scheduler in snapshot.schedulers)

    def unless_idle(scheduler: SchedulerNow, count: int | None) -> float | None:
        return 0.0 if scheduler.is_idle else count

    text = "Requests in its running batch."
    running = values(lambda scheduler: unless_idle(scheduler, scheduler.running))
    yield gauge("scheduler_running_requests", text, _OF_SCHEDULER, running)
    text = "Requests that wait for a place in the batch."
    waiting = values(lambda scheduler: unless_idle(scheduler, scheduler.waiting))
    yield gauge("scheduler_waiting_requests", text, _OF_SCHEDULER, waiting)
    text = "Of the key-value cache what is in use, kept prefixes included."
    used = values(lambda scheduler: scheduler.kv_cache_used_share)
    yield gauge("scheduler_kv_cache_used_ratio", text, _OF_SCHEDULER, used)
    text = "Of the key-value cache what running requests hold."
    held = values(lambda scheduler: scheduler.kv_cache_running_share)
    yield gauge("scheduler_kv_cache_running_ratio", text, _OF_SCHEDULER, held)


def of_gpus(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield what the GPUs of the follower's host do."""

    def values(read: Callable[[GpuNow], float | None]) -> Iterator[Value]:
        return (((str(gpu.gpu), gpu.name or ""), read(gpu)) for gpu in snapshot.gpus)

    text = "Share of the driver's last sampling period in which a kernel ran."
    yield gauge("gpu_busy_ratio", text, _OF_GPU, values(lambda gpu: gpu.busy_share))
    text = "Memory in use by all processes."
    yield gauge("gpu_memory_used_bytes", text, _OF_GPU, values(lambda gpu: gpu.memory_used_bytes))
    yield gauge("gpu_memory_bytes", "Memory in all.", _OF_GPU, values(lambda gpu: gpu.memory_bytes))
    yield gauge("gpu_power_watts", "Of the whole board.", _OF_GPU, values(lambda gpu: gpu.power_watts))
    text = "Clock of the multiprocessors."
    yield gauge("gpu_sm_clock_hertz", text, _OF_GPU, values(lambda gpu: _hertz(gpu.sm_clock_mhz)))
    text = "Clock of the memory."
    yield gauge("gpu_memory_clock_hertz", text, _OF_GPU, values(lambda gpu: _hertz(gpu.memory_clock_mhz)))
    limits = [((str(gpu.gpu), limit), 1.0) for gpu in snapshot.gpus for limit in gpu.clock_limits or ()]
    yield gauge("gpu_clock_limit", "1 for each thing that keeps its clocks down.", ("gpu", "limit"), limits)


def _hertz(megahertz: int | None) -> float | None:
    return None if megahertz is None else megahertz * _HERTZ
