"""Say in words how full schedulers are, and what GPUs do: the terminal, the page and `watch --once` agree."""

from collections.abc import Iterable, Sequence
from typing import Final

from sglang_instrument.live.state import GpuNow, SchedulerNow, Snapshot
from sglang_instrument.plain_text import plain
from sglang_instrument.sparkline import sparkline

_GIB: Final = 2**30
_IDLE: Final = "idle"  # of clock_limits: nothing holds the clocks down, nothing runs


def schedulers_line(snapshot: Snapshot) -> str:
    """Return how full all schedulers are: "2 schedulers: 12 running, 3 waiting, KV cache to 63 %"."""
    if not snapshot.schedulers:
        return ""
    count = _counted(len(snapshot.schedulers), "scheduler")
    busy = [scheduler for scheduler in snapshot.schedulers if not scheduler.is_idle]
    if not busy:
        return f"{count}: no batch runs"
    running = sum(scheduler.running or 0 for scheduler in busy)
    waiting = sum(scheduler.waiting or 0 for scheduler in busy)
    shares = [share for scheduler in busy if (share := scheduler.kv_cache_used_share) is not None]
    cache = f", KV cache{' to' if len(shares) > 1 else ''} {_percent(max(shares))}" if shares else ""
    return f"{count}: {running:,} running, {waiting:,} waiting{cache}"


def gpus_line(snapshot: Snapshot) -> str:
    """Return what the GPUs of this host do: "2 GPUs: 91 % busy, memory 71 %, 860 W, held by power_cap"."""
    gpus = snapshot.gpus
    if not gpus:
        return ""
    parts = []
    busy = [gpu.busy_share for gpu in gpus if gpu.busy_share is not None]
    if busy:
        spread = f" ({_percent(min(busy))} to {_percent(max(busy))})" if max(busy) - min(busy) >= 0.1 else ""
        parts.append(f"{_percent(sum(busy) / len(busy))} busy{spread}")
    shares = [share for gpu in gpus if (share := memory_share(gpu)) is not None]
    parts += [f"memory {_percent(max(shares))}"] if shares else []
    watts = [gpu.power_watts for gpu in gpus if gpu.power_watts is not None]
    parts += [f"{sum(watts):,.0f} W"] if watts else []
    limits = sorted({limit for gpu in gpus for limit in gpu.clock_limits or () if limit != _IDLE})
    parts += [f"clocks held by {', '.join(map(plain, limits))}"] if limits else []
    return f"{_counted(len(gpus), 'GPU')}: {', '.join(parts) or 'the driver tells nothing'}"


def scheduler_cells(scheduler: SchedulerNow) -> tuple[str, str, str, str, str, str]:
    """Return a scheduler's name, what runs and waits, the share of its cache, and the course of these."""
    return (
        plain(scheduler.scheduler),
        "idle" if scheduler.is_idle else _number(scheduler.running),
        "" if scheduler.is_idle else _number(scheduler.waiting),
        course(scheduler.running_recent),
        "" if scheduler.kv_cache_used_share is None else _percent(scheduler.kv_cache_used_share),
        course(scheduler.kv_cache_used_share_recent, top=1.0),
    )


def gpu_cells(gpu: GpuNow) -> tuple[str, str, str, str, str, str, str]:
    """Return a GPU's number, model, busy share, memory, power, clocks, and what holds these down."""
    used, whole = gpu.memory_used_bytes, gpu.memory_bytes
    memory = "" if used is None else f"{used / _GIB:,.1f}"
    clocks = [clock for clock in (gpu.sm_clock_mhz, gpu.memory_clock_mhz) if clock is not None]
    return (
        str(gpu.gpu),
        plain(gpu.name or ""),
        "" if gpu.busy_share is None else _percent(gpu.busy_share),
        memory if whole is None or not memory else f"{memory} of {whole / _GIB:,.0f} GiB",
        "" if gpu.power_watts is None else f"{gpu.power_watts:,.0f} W",
        " / ".join(f"{clock:,}" for clock in clocks),
        ", ".join(map(plain, gpu.clock_limits or ())),
    )


def memory_share(gpu: GpuNow) -> float | None:
    """Return the share of a GPU's memory that is in use; None where it does not tell."""
    if gpu.memory_used_bytes is None or not gpu.memory_bytes:
        return None
    return gpu.memory_used_bytes / gpu.memory_bytes


def course(values: Sequence[float | None], top: float | None = None) -> str:
    """Return values second by second as a line of blocks, the highest as high as `top` or the largest."""
    known: Iterable[float] = (value for value in values if value is not None)
    highest = max(known, default=0.0) if top is None else top
    return sparkline([value or 0.0 for value in values], highest)


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
