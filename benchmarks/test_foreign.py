"""Measure how fast logs of other projects are read, against our own log of the same run."""

import json
import subprocess
import sys

import foreign_runs
import pytest
from rounds import HERE, ROUNDS, Spread, save, table

from sglang_instrument.testing.synthetic import write_run
from sglang_instrument.testing.usual_run import usual_shape

ROUNDS = min(ROUNDS, 9)
STEPS = 60
LEAST = 0.5  # of the events a second of our own lines
FORMATS = ("slime_traces", "verl_traces", "areal_traces", "sglang_requests", "server_log")


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    home, shape = tmp_path_factory.mktemp("foreign"), usual_shape(3, steps=STEPS)
    run = foreign_runs.planted(shape=shape, causes=[])
    our_run = write_run(home / "own", usual_shape(3, steps=STEPS // 3))
    return {"own": our_run, **{name: getattr(foreign_runs, name)(home / name, run) for name in FORMATS}}


def read(path):
    command = [sys.executable, str(HERE / "foreign.py"), str(path)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_each_foreign_format_is_read_at_half_the_speed_of_our_own(logs, show):
    rounds = [{name: read(path) for name, path in logs.items()} for _ in range(ROUNDS)]
    rows = []
    for name in logs:
        speeds = [costs[name]["events"] / costs[name]["cpu_sec"] for costs in rounds]
        our_speeds = [costs["own"]["events"] / costs["own"]["cpu_sec"] for costs in rounds]
        ratio = Spread.of([speed / ours for speed, ours in zip(speeds, our_speeds, strict=True)])
        megabytes = Spread.of([costs[name]["bytes"] / 1e6 / costs[name]["cpu_sec"] for costs in rounds])
        rows.append(
            (
                name,
                f"{rounds[0][name]['events']:,}",
                f"{Spread.of(speeds).median / 1e3:.0f},000",
                f"{megabytes.median:.0f}",
                f"{ratio.median:.2f}",
                f"{ratio.low:.2f} .. {ratio.high:.2f}",
            )
        )
    columns = ("", "events", "a CPU second", "MB a CPU second", "of our own", "quartiles")
    show(table("reading and digesting logs, one thread", columns, rows))
    save("foreign", rows, rounds=rounds)
    slower = {name: ratio for name, *_, ratio, _ in rows[1:] if float(ratio) < LEAST}
    assert slower == {}
