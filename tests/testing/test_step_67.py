"""The run of `demo --synthetic` has the story that the README tells, and the verdict finds it."""

import polars as pl
import pytest

from sglang_instrument.analysis import Run, open_run
from sglang_instrument.analysis.verdict.verdict import verdict_of
from sglang_instrument.demo.synthetic import write


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("synthetic")
    write(folder)
    return open_run(folder, cached=False)


def test_step_67_is_three_times_slower_because_109_of_512_requests_stand_still(run: Run) -> None:
    steps = run.digest.steps.group_by("step").agg(sec=pl.col("duration_sec").max())
    seconds = dict(steps.iter_rows())
    assert seconds[67] > 3 * sorted(seconds.values())[len(seconds) // 2]
    requests = run.digest.requests.filter(step=67, worker=0)
    assert len(requests) == 512
    [begun] = run.read_spans(step=67, worker=0).filter(event="async_generate_duration")["start_us"]
    late = requests.filter((pl.col("end_us") - begun) / 1e6 > 22.0)
    assert len(late) == 109
    assert (late["end_us"].min() - begun) / 1e6 > 165


def test_the_verdict_is_that_the_engine_of_worker_0_stood_still(run: Run) -> None:
    assert verdict_of(run, over=False).startswith(
        "step 67: worker 0: its engine stood still for 146 s, from 19 s on, while 109 calls waited"
    )
