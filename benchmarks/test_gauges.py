"""Measure what a scheduler of SGLang pays for saying once a second how full it is: CPU of its probe.

The probe is that of the real `Scheduler.run_batch`, taken from its rewritten code, and the scheduler an
object of the real class with the attributes that the probe reads. Between two records the probe only looks at
the clock, at each batch. CPU time of the whole process counts: of the call, and of the thread that writes.
"""

import inspect
import time
from types import SimpleNamespace

import pytest
from rounds import save, table

import sglang_instrument

pytestmark = pytest.mark.filterwarnings("default")  # those of torch and sglang, at their import
BATCHES = 1000  # a second: more than a scheduler runs
SHARE = 0.1  # % of a core
LOOKS, RECORDS = 200_000, 20_000
REQUESTS, PAGES = 512, 200_000


@pytest.fixture
def scheduler_class(tmp_path):
    pytest.importorskip("sglang")
    sglang_instrument.install(
        log_dir=tmp_path, experiment="gauges", trainers="sglang", engine_detail="requests"
    )
    from sglang.srt.managers.scheduler import Scheduler

    yield Scheduler
    sglang_instrument.uninstall()


def probe_of(scheduler_class):
    constants = inspect.unwrap(scheduler_class.run_batch).__code__.co_consts
    (probe,) = [constant for constant in constants if hasattr(constant, "region")]
    assert probe.region.event == "scheduler_gauges"
    return probe


def full(scheduler_class):
    """Return a scheduler with a full batch, and this batch."""
    import torch

    batch = SimpleNamespace(reqs=[object()] * REQUESTS, forward_mode=SimpleNamespace(name="DECODE"))
    scheduler = object.__new__(scheduler_class)
    vars(scheduler).update(
        running_batch=batch,
        waiting_queue=[object()] * REQUESTS,
        max_total_num_tokens=PAGES,
        token_to_kv_pool_allocator=SimpleNamespace(free_pages=torch.arange(PAGES // 4)),
        tree_cache=SimpleNamespace(evictable_size_=PAGES // 4),
        page_size=1,
        attn_tp_rank=0,
    )
    return batch, scheduler


def cpu_us(call, times):
    """Return the CPU time of the process for each of so many calls."""
    begun = time.process_time()
    for _ in range(times):
        call()
    sglang_instrument.flush()
    return (time.process_time() - begun) / times * 1e6


def test_a_gauge_a_second_costs_a_scheduler_hardly_anything(show, scheduler_class, tmp_path):
    probe = probe_of(scheduler_class)
    given = full(scheduler_class)
    batch, scheduler = given
    values = {"batch": batch, "self": scheduler}
    arguments = [values[name] for name in probe.enter_locals]
    empty_us = cpu_us(lambda: None, LOOKS)
    probe(*arguments)  # the first one records, and begins the second
    look_us = cpu_us(lambda: probe(*arguments), LOOKS) - empty_us
    interval = next(part for part in probe.args if hasattr(part, "is_over"))
    interval._seconds = 0.0
    interval._next = 0.0
    record_us = cpu_us(lambda: probe(*arguments), RECORDS)
    lines = sum(
        line.count('"scheduler_gauges"')
        for path in tmp_path.rglob("*.jsonl")
        for line in path.read_text().splitlines()
    )
    assert lines > RECORDS
    share = (look_us * BATCHES + record_us) / 1e6 * 100
    rows = [(f"{look_us:.3f}", f"{record_us:.1f}", f"{share:.4f}", SHARE)]
    columns = ("a batch, us", "a record, us", f"% of a core at {BATCHES} batches/s", "bound")
    show(table("gauges of a scheduler: CPU", columns, rows))
    save("gauges", rows)
    assert share <= SHARE
