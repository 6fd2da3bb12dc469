"""An engine that stands still for 30 s loses what its step would gain without that: no more than 30 s."""

from pathlib import Path

import pytest

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.verdict.verdict import findings_of
from sglang_instrument.testing import StandStill
from sglang_instrument.testing.kinds import STEP, WORKER, wall_of
from sglang_instrument.testing.synthetic import write_run
from sglang_instrument.testing.usual_run import usual_shape


@pytest.mark.parametrize("worker", [WORKER, None])
def test_a_freeze_loses_its_seconds(worker: int | None, tmp_path: Path) -> None:
    shape, cause = usual_shape(0, steps=STEP), StandStill(STEP, worker, seconds=30.0)
    finding = findings_of(open_run(write_run(tmp_path, shape, [cause]), cached=False), over=True)[0]
    assert (finding.cause, finding.step, finding.worker) == ("standstill", STEP, worker)
    cost_sec = wall_of(shape, STEP, [cause]) - wall_of(shape, STEP)
    assert 20 < cost_sec < 30.01  # the other workers are not much earlier
    assert finding.lost_sec == pytest.approx(cost_sec, rel=0.1)
