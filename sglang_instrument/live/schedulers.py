"""Tell how full each scheduler is now, and how full it was in the last seconds."""

from collections import deque
from collections.abc import Iterator
from typing import Final

from sglang_instrument.live.counting.gauges import KEPT, Gauge
from sglang_instrument.live.problems.moment import Now
from sglang_instrument.live.state import SchedulerNow

_US: Final = 1_000_000
_IDLE_SEC: Final = 3.0  # a gauge comes once a second while batches run


def schedulers_now(now: Now) -> Iterator[SchedulerNow]:
    """Yield the schedulers that logged how full they are, in the order of their names."""
    for name, scheduler in sorted(now.counts.gauges.schedulers.items()):
        process = now.counts.processes.get((scheduler.role, scheduler.worker))
        if process is None:
            continue
        now_us = process.now_us(now.now)
        newest = scheduler.gauges[-1]
        age_sec = max(0.0, (now_us - newest.at_us) / 1e6)
        recent = _by_second(scheduler.gauges, now_us)
        yield SchedulerNow(
            scheduler=name,
            age_sec=age_sec,
            is_idle=now.is_over or age_sec > _IDLE_SEC,
            running=newest.running,
            waiting=newest.waiting,
            kv_cache_running_share=newest.kv_cache_running_share,
            kv_cache_used_share=newest.kv_cache_used_share,
            running_recent=tuple(gauge and gauge.running for gauge in recent),
            waiting_recent=tuple(gauge and gauge.waiting for gauge in recent),
            kv_cache_used_share_recent=tuple(gauge and gauge.kv_cache_used_share for gauge in recent),
        )


def _by_second(gauges: deque[Gauge], now_us: int) -> list[Gauge | None]:
    """Return the gauge of each of the last seconds, the oldest first; None where no batch ran.

    Gauges come a little more than a second apart, so a second without one has that of the second before.
    """
    by_age: dict[int, Gauge] = {}
    for gauge in gauges:
        age = max(0, (now_us - gauge.at_us) // _US)
        by_age[age] = gauge
    return [by_age.get(age) or by_age.get(age + 1) for age in reversed(range(KEPT))]
