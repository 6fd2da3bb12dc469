"""A stand-in for slime hands the numbers of a finished rollout to its trackers, once, after its training."""

import subprocess
import sys

from test_slime import HERE, LIMIT_SEC, run_python

PROGRAM = """
import sglang_instrument

sglang_instrument.install(experiment="run", scalars=True)
from slime.utils import logging_utils, train_metric_utils

session = sglang_instrument.startup.install._session
logging_utils.init_tracking(None)
assert session.scalars._thread is not None
session.scalars._known[3] = {"rollout/step_sec": 2.5, "rollout/requests": 8}
train_metric_utils.log_perf_data_raw(3, None, False, None)
train_metric_utils.log_perf_data_raw(3, None, True, None)
train_metric_utils.log_perf_data_raw(4, None, True, None)
session.scalars._known[4] = {"rollout/step_sec": 3.5}
train_metric_utils.log_perf_data_raw(5, None, True, None)  # step 4 was late
assert logging_utils.logged == [
    (3, {"perf/train_time": 1.0, "rollout/step": 3, "rollout/step_sec": 2.5, "rollout/requests": 8}),
    (4, {"perf/train_time": 1.0, "rollout/step": 4}),
    (4, {"rollout/step_sec": 3.5, "rollout/step": 4}),
    (5, {"perf/train_time": 1.0, "rollout/step": 5}),
], logging_utils.logged
"""


def test_the_numbers_go_along_with_the_performance_of_their_rollout(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    run_python(sys.executable, [path], tmp_path)


def test_the_stand_in_runs_without_us(tmp_path):
    program = "from slime.utils import train_metric_utils as t; t.log_perf_data_raw(1, None, True, None)"
    subprocess.run([sys.executable, "-c", program], cwd=HERE / "stand_in", check=True, timeout=LIMIT_SEC)
