"""Measure a step of the demo on the real engine, in pairs, until precise enough.

With and without install; and with install, with and without those that watch the run.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from rounds import HERE, interval, save, table

sys.path.insert(0, str(HERE.parent / "tests"))

from own_group import end_group
from switched import watchers

SECONDS = float(os.environ.get("BENCH_DEMO_SECONDS", "600"))
SHARP, WIDTH = 0.01, 0.02  # width of the 95 % interval as a share of the step: the goal, and the maximum
MOST = 0.01  # upper bound of the interval
TITLES = {
    "install": "a step of the demo, with install against without",
    "watched": "a recorded step of the demo, with `watch` and scalars against without",
}


@pytest.mark.parametrize("what", ["install", "watched"])
def test_a_step_takes_no_longer(show, tmp_path, what):
    scratch = tmp_path / "worker"
    scratch.mkdir()
    command = [sys.executable, str(HERE / "demo_steps.py"), str(scratch), str(SECONDS), what]
    pairs = []
    with (tmp_path / "output").open("w") as output:
        steps = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=output, text=True, cwd=tmp_path, start_new_session=True
        )
        for line in steps.stdout:
            if line.startswith('{"with"'):
                pairs.append(json.loads(line))
            if len(pairs) >= 20 and len(pairs) % 10 == 0:
                low, high = interval([pair["with"] / pair["without"] - 1 for pair in pairs])
                if high - low <= SHARP:
                    break
        for run in (scratch / "logs").glob("*"):
            watchers.end(run)
        end_group(steps)  # the engine's own handler of SIGTERM may take minutes
        steps.stdout.close()
    assert pairs, Path(tmp_path / "output").read_text()[-2000:]
    differences = [pair["with"] / pair["without"] - 1 for pair in pairs]
    low, high = interval(differences)
    middle, step_sec = statistics.median(differences), statistics.median(pair["without"] for pair in pairs)
    rows = [(f"{step_sec:.2f}", len(pairs), f"{middle:+.2%}", f"{low:+.2%} .. {high:+.2%}", f"{MOST:.0%}")]
    columns = ("step s", "pairs", "median difference", "95 % interval", "bound")
    show(table(TITLES[what], columns, rows))
    save(f"demo_{what}", rows, rounds=pairs)
    assert high - low <= WIDTH
    assert high <= MOST
