"""Commit steps with AReaL's own StatsLogger, into trackers that only keep what they get: track.py FOLDER."""

import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import sglang_instrument

calls_by_tracker = {"wandb": [], "swanlab": [], "trackio": []}


class SummaryWriter:
    """Stand in for tensorboardX."""

    def __init__(self, log_dir=None):
        self.scalars = []

    def add_scalar(self, name, value, step):
        self.scalars.append([name, value, step])


def module_of(name, **members):
    """Put a module in place of a package that AReaL imports, whether it is used or not."""
    module = sys.modules[name] = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(members)


def write_trackers():
    for name, calls in calls_by_tracker.items():
        module_of(name, log=lambda item, step, calls=calls: calls.append([step, item]))
    module_of("tensorboardX", SummaryWriter=SummaryWriter)
    module_of("tabulate", tabulate=lambda *rows, **options: "")  # AReaL prints a table of what it commits


def main(folder):
    sglang_instrument.install(log_dir=folder, experiment="run", scalars=True)
    write_trackers()
    from areal.utils.stats_logger import StatsLogger

    logger = StatsLogger.__new__(StatsLogger)  # its __init__ needs a whole configuration
    logger.ft_spec = SimpleNamespace(total_train_epochs=1, steps_per_epoch=9, total_train_steps=9)
    logger._trackio_enabled, logger._last_commit_step = False, -1
    logger.summary_writer = SummaryWriter()
    known = sglang_instrument.startup.install._session.scalars._known
    known[1] = {"rollout/step_sec": 1.5}
    data = {"loss": 0.5}
    logger.commit(0, 0, 0, data)
    logger.commit(0, 1, 1, data)
    known[0] = {"rollout/step_sec": 0.25}  # its last request has ended in step 2
    logger.commit(0, 2, 2, [data, {"loss": 0.25}])
    states = {
        patch["event"]: patch["state"]
        for patch in sglang_instrument.status()["patches"]
        if patch["table"] == "areal/tracker"
    }
    answer = {"data": data, "states": states, "scalars": logger.summary_writer.scalars, **calls_by_tracker}
    Path(folder, "answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
