"""Log steps with verl's own Tracking: track.py FOLDER BACKENDS; a rollout of spans stands for verl's.

Step 1 is known when it is logged, step 2 is not, step 3 is logged for both. One backend raises each time.
"""

import json
import os
import sys
import time
from pathlib import Path

import sglang_instrument
from sglang_instrument import bind, span

LIMIT_SEC = 300


class Raises:
    """A tracker that raises for what it is not asked to log by the trainer."""

    def log(self, data, step):
        if "loss" not in data:
            raise SystemExit("this tracker takes no earlier step")


def roll_out(step):
    with bind(step=step, worker=0), span("total_step_duration"):
        for name in "abcd":
            with span("async_rollout_request_complete", request_id=name):
                tokens = {"generated_tokens": 10 * step, "prompt_tokens": 8, "cached_tokens": 6}
                with span("turn_engine_call", request_id=name, turn=0, **tokens):
                    time.sleep(0.02)


def wait_for(step):
    ends = time.monotonic() + LIMIT_SEC
    while not sglang_instrument.scalars(step):
        if time.monotonic() > ends:
            raise TimeoutError(f"no numbers of step {step}")
        time.sleep(0.1)


def read_tensorboard(folder):
    """Return what TensorBoard reads: {tag: [(step, value), ...]}."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder)).Reload()
    return {
        tag: [(scalar.step, scalar.value) for scalar in read.Scalars(tag)] for tag in read.Tags()["scalars"]
    }


def main(folder, backends):
    os.environ |= {
        "TENSORBOARD_DIR": f"{folder}/tensorboard",
        "VERL_FILE_LOGGER_PATH": f"{folder}/file.jsonl",
        "MLFLOW_TRACKING_URI": f"file://{folder}/mlflow",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder),
    }
    sglang_instrument.install(experiment="run", scalars=True)
    from verl.utils.tracking import Tracking

    tracking = Tracking("project", "name", default_backend=backends, config={"trainer": {"x": 1}})
    tracking.logger["clearml"] = Raises()
    given = []
    for step in (1, 2, 3):
        roll_out(step)
        if step == 1:
            wait_for(1)
        data = {"loss": 1.0 / step}
        tracking.log(data=data, step=step)
        given.append(data)
        if step == 2:
            wait_for(2)
    del tracking.logger["clearml"]
    states = {
        patch["event"]: patch["state"]
        for patch in sglang_instrument.status()["patches"]
        if "verl/" in patch["table"]
    }
    notices = [notice["notice"] for notice in sglang_instrument.status()["notices"]]
    answer = {"given": given, "scalars": sglang_instrument.scalars(1), "patches": states, "notices": notices}
    Path(folder, "answer.json").write_text(json.dumps(answer))
    tracking.logger["tensorboard"].finish()
    Path(folder, "tensorboard.json").write_text(json.dumps(read_tensorboard(folder / "tensorboard")))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split(","))
