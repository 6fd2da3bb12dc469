"""Add weight updates to the engines of a synthetic run, between its steps, with what goes wrong in them."""

import json
from pathlib import Path

from sglang_instrument.analysis import findings_of, open_run
from sglang_instrument.testing import synthetic_run

STEPS, WORKERS = 4, 3
#: What can go wrong, by the cause of the finding that names it: how `run_with_updates` makes it.
CAUSES = {
    "stale-prefix": {"keeps_cache": True},
    "wrong-label": {"lies": 3},
    "aborting-update": {"aborts": True},
    "slow-update": {"slow_sec": 1.5},
}


def run_with_updates(folder, seed, keeps_cache=False, lies=0, aborts=False, slow_sec=0.0):
    """Write a run whose engines get new weights before each step.

    Args:
        folder: Where to write it.
        seed: Of the run.
        keeps_cache: Whether the cache is not flushed after the update before step 2.
        lies: How many replies of step 2 say the version of the step before.
        aborts: Whether the update after step 1 aborts all calls of its last second, and all that still run.
        slow_sec: How much longer server 1 takes for each update than the others.
    """
    shape = {"steps": STEPS, "workers": WORKERS, "requests": 8, "seed": seed}
    synthetic_run(folder, **shape, engine_clocks=dict.fromkeys(range(WORKERS), 0.0))
    steps = open_run(folder, cached=False).digest.steps.filter(role="worker")
    begins = {step: int(rows["start_us"].min()) for (step,), rows in steps.group_by("step")}
    order = sorted(begins)
    for rank in range(WORKERS):
        took = 100_000 + (int(slow_sec * 1e6) if rank == 1 else 0)
        updates = []
        for step in order:
            end = begins[step] - 3_000_000 + took
            updates.append(_span("weights_update", end - took, end, weight_version=str(step), success=True))
            if not (keeps_cache and step == order[1]):
                updates.append(_span("engine_cache_flush", end, end + 1000, success=True))
        _append(folder / f"engine/scheduler_{rank}.jsonl", updates)
        _rewrite(folder / f"engine/server_{rank}.jsonl", begins, order, lies if rank == 0 else 0, aborts)
    return folder


def causes_in(folder):
    """Return which of these causes the verdict finds in a run that is over."""
    return {
        finding.cause for finding in findings_of(open_run(folder, cached=False), over=True)
    } & CAUSES.keys()


def _span(event, start_us, end_us, **extra):
    timestamp = "2026-01-05T08:00:00.000000+00:00"
    return {
        "timestamp": timestamp,
        "event": event,
        "duration_sec": (end_us - start_us) / 1e6,
        "extra": extra,
        "start_us": start_us,
    }


def _append(path: Path, records):
    with path.open("a") as file:
        for record in records:
            print(json.dumps(record), file=file)


def _rewrite(path: Path, begins, order, lies, aborts):
    """Give each reply its label and its cached tokens; some labels lie, some calls are aborted."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["event"] != "engine_request":
            continue
        step = max((version for version in order if begins[version] <= line["start_us"]), default=order[0])
        extra = line["extra"]
        extra |= {"weight_version": str(step), "finish_reason": "stop", "cached_tokens": 20}
        if lies and step == order[1]:
            extra["weight_version"] = str(order[0])
            lies -= 1
        if aborts and step == order[1]:
            last = begins[order[2]] - 2_950_000  # while the next update goes on
            line["duration_sec"] = (last - line["start_us"]) / 1e6
            extra["finish_reason"] = "abort"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
