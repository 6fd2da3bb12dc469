"""Read what `ways_to_start.py` recorded: for tests; `recorded_ways.py [WAY ...]` prints a table."""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import ways_to_start
from logged import read_records, recorded_events
from ways_to_start import REBIND, STARTS, WAYS, tasks_of

# Python 3.12 and newer warn of threads and fork.
ENVIRONMENT = {"PYTHONWARNINGS": "ignore::DeprecationWarning", "PYTHONPATH": os.pathsep.join(sys.path)}


def assert_recorded(run_script, way):
    """Run a way in its own process: each task is recorded once, under the ids of its start."""
    command = [sys.executable, ways_to_start.__file__, way]
    script = run_script(f"import os, sys; os.execv(sys.executable, {command!r})", **ENVIRONMENT)
    expected = {label: ({} if way in REBIND else ids) for label, ids in STARTS.items()}
    assert recorded_in(script.records) == {
        (label, ids.get("step", 0), ids.get("request_id")): tasks_of(way) for label, ids in expected.items()
    }


def recorded_in(files):
    """Return how many records each task, by its label, has in which step for which request."""
    did = [
        record
        for records in files.values()
        for record in recorded_events(records)
        if record["event"] == "did"
    ]
    return Counter(
        (record["extra"]["label"], record["step"], record["extra"].get("request_id")) for record in did
    )


def main(ways):
    """Print what each way started, what was recorded, and under which ids."""
    print("| started by | tasks | recorded | ids of the tasks of step 1, of step 2, of no step |")
    print("|---|---|---|---|")
    for way in ways or WAYS:
        with tempfile.TemporaryDirectory() as folder:
            environment = {
                **os.environ,
                **ENVIRONMENT,
                "SGLANG_INSTRUMENT_LOG_DIR": folder,
                "EXPERIMENT_NAME": "run",
            }
            command = [sys.executable, ways_to_start.__file__, way]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            recorded = recorded_in(read_records(Path(folder) / "run"))
        if done.returncode:
            print(f"| {way} | failed: {done.stderr.splitlines()[-1]} | | |")
            continue
        ids = [f"step {step}, {request}" if request else "none" for _, step, request in sorted(recorded)]
        started = len(STARTS) * tasks_of(way)
        print(f"| {way} | {started} | {recorded.total()} | {'; '.join(ids)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
