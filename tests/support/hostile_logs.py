"""Logs of every kind that are read, small ones, to make hostile ones of."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import foreign_runs
from hostile_corpus import mutated
from made_traces import engine_trace
from routed_run import RoutedRun

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.dataset.export import export_dataset
from sglang_instrument.analysis.long_runs.plan import plan_prune
from sglang_instrument.analysis.long_runs.prune import prune
from sglang_instrument.testing import BlockedLoop, Hang, SlowEngine, synthetic_run
from sglang_instrument.testing.usual_run import usual_shape

HERE = Path(__file__).parent
FOREIGN = (
    *("slime_traces", "verl_traces", "verl_metrics", "areal_traces", "sglang_requests", "server_log"),
    *("verl_console", "slime_timers"),
)


def sound_logs(folder: Path) -> dict[str, Path]:
    """Write a log of each kind, by name."""
    causes = [SlowEngine(2, 1, factor=6.0), BlockedLoop(3, 0, at_sec=1.0, seconds=0.5), Hang(3, 1)]
    logs = {
        "run": synthetic_run(folder / "run", steps=3, workers=2, requests=6, validate_every=2, causes=causes),
        "engine": synthetic_run(
            folder / "engine", steps=2, workers=2, requests=4, engine_clocks={0: 0.0, 1: 3.0}
        ),
        "routed": RoutedRun(policy="random", servers=2).write(folder / "routed"),
    }
    logs["dataset"] = folder / "dataset"
    export_dataset(open_run(logs["run"]), logs["dataset"])
    logs["pruned"] = shutil.copytree(logs["engine"], folder / "pruned")
    for path in logs["pruned"].rglob("*.jsonl"):
        os.utime(path, (0, 0))  # nobody writes to it any more
    prune(plan_prune(logs["pruned"], keep_steps=1, keep_slowest=0))
    few = foreign_runs.planted(shape=replace(usual_shape(3, steps=3), workers=2, requests=6), causes=[])
    logs |= {name: getattr(foreign_runs, name)(folder / name, few) for name in FOREIGN}
    (folder / "trace").mkdir()
    engine_trace().write(folder / "trace/TP-0.trace.json.gz")
    return {**logs, "trace": folder / "trace"}


def hostile_logs(sound: dict[str, Path], folder: Path, seeds: list[tuple[str, int]]) -> list[Path]:
    """Write hostile logs of some kinds, each by its seed."""
    folder.mkdir(parents=True, exist_ok=True)
    return [mutated(sound[kind], folder / f"{kind}-{seed}", seed) for kind, seed in seeds]


def run_limited(logs: list[Path], scratch: Path) -> tuple[int, list[dict[str, Any]]]:
    """Run every command on logs in a child with limits; return how many ran, and what went wrong."""
    scratch.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]),
        "POLARS_MAX_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "COLUMNS": "120",
        "NO_COLOR": "1",
    }
    program = [sys.executable, str(HERE / "limited_commands.py"), str(scratch / "out"), *map(str, logs)]
    child = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")]
    count = sum(line.get("commands", 0) for line in lines)
    faults = [line for line in lines if "fault" in line]
    if not count:
        faults.append({"fault": f"the child ended with {child.returncode}: {child.stderr[-3000:]}"})
    return count, faults
