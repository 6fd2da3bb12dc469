"""A worker of the demo installs this package first, unless the run is one without `install()`."""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict

import pytest

from sglang_instrument.cli.commands import demo
from sglang_instrument.demo.options import DemoOptions, WorkerOrder

NO_PIPE = 12345  # a worker that cannot report ends before it starts an engine


@pytest.mark.parametrize("install", [True, False])
def test_a_worker_installs_unless_the_run_is_without_install(tmp_path, log_dir, install):
    order = WorkerOrder(DemoOptions(install=install), 0, "model", str(tmp_path), NO_PIPE)
    done = subprocess.run(
        [sys.executable, "-m", "sglang_instrument.demo.worker", json.dumps(asdict(order))],
        env={**os.environ, "SGLANG_INSTRUMENT_LOG_DIR": str(log_dir), "EXPERIMENT_NAME": "run"},
        capture_output=True,
        text=True,
    )
    assert "Bad file descriptor" in done.stderr
    assert done.stderr.startswith("sglang_instrument ") == install
    assert (f"-> {log_dir}/run" in done.stderr) == install


@pytest.mark.parametrize(("options", "install"), [([], True), (["--no-install"], False)])
def test_the_command_tells_the_workers_whether_to_install(options, install):
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    assert demo._options(parser.parse_args(options)).install is install
