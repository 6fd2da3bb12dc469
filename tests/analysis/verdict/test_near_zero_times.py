"""Ratios of times that are nearly nothing accuse nobody, and hide nobody beside them."""

import random
from pathlib import Path
from typing import Any

import pytest
from hand_written import record, request, write_file

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.analysis.verdict.verdict import findings_of

WORKERS = 8
STEPS = 6
STEP_SEC = 9.0


def write_steps(
    folder: Path, late: dict[tuple[int, int], float], sorting: dict[tuple[int, int], float]
) -> None:
    """Write steps whose workers start up to 0.13 s apart, and sort for 0.2 to 90 ms.

    Args:
        folder: The run's.
        late: How much later a worker starts in a step.
        sorting: How much longer a worker sorts in a step.
    """
    draw = random.Random(7)
    for step in range(1, STEPS + 1):
        begin = 20.0 * step
        for worker in range(WORKERS):
            start = begin + 2e-4 * 650 ** draw.random() + late.get((step, worker), 0.0)
            sorted_sec = 2e-4 * 450 ** draw.random() + sorting.get((step, worker), 0.0)
            end = start + STEP_SEC - draw.uniform(0.0, 0.3)
            spans: list[dict[str, Any]] = [
                request(f"r{step}-{worker}", start, end),
                record("sorting_duration", end, end + sorted_sec, task=0),
                record("total_step_duration", start, end + sorted_sec, task=0),
            ]
            write_file(folder, step, worker, spans)


def findings_in(folder: Path) -> list[Finding]:
    return findings_of(open_run(folder))


def test_a_worker_that_begins_late_is_named_where_the_others_begin_at_once(tmp_path: Path) -> None:
    write_steps(tmp_path, late={(4, 3): 8.0}, sorting={})
    [finding] = findings_in(tmp_path)
    assert (finding.cause, finding.step, finding.worker) == ("late-start", 4, 3)
    assert finding.lost_sec == pytest.approx(8.0, abs=0.5)
    assert finding.sentence.startswith("step 4: worker 3 began 8 s later")


def test_a_part_that_usually_takes_nearly_nothing_is_told_in_seconds_not_thousandfold(tmp_path: Path) -> None:
    write_steps(tmp_path, late={}, sorting={(5, worker): 4.0 for worker in range(WORKERS)})
    [finding] = findings_in(tmp_path)
    assert (finding.cause, finding.step) == ("post-processing", 5)
    assert finding.sentence.startswith("step 5: sorting_duration took 4 s, usually 0.00")
    assert finding.evidence["times"] == pytest.approx(4.0 / (0.02 * STEP_SEC), rel=0.05)


def test_times_that_scatter_near_nothing_accuse_nobody(tmp_path: Path) -> None:
    write_steps(tmp_path, late={}, sorting={})
    assert findings_in(tmp_path) == []
