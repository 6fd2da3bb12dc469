"""Write steps of workers by hand, line by line, as the writer lays them out."""

import json
from datetime import datetime, timezone

EPOCH_US = 1_767_600_000_000_000


def record(event, start, end, **keys):
    """Return a span from `start` to `end`, in seconds after an epoch; `extra` and other keys as given."""
    return {
        "timestamp": datetime.fromtimestamp(EPOCH_US / 1e6 + end, timezone.utc).isoformat(),
        "event": event,
        "duration_sec": float(end - start),
        "start_us": EPOCH_US + int(start * 1e6),
        **keys,
    }


def write_file(folder, step, worker, records, run_id="now", closed=True):
    """Append the records of a worker's step, with a header, and with `step_closed` if it is `closed`."""
    path = folder / f"step_{step}" / f"worker_{worker}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    timestamp = record("", 0, 0)["timestamp"]
    header = {"timestamp": timestamp, "event": "log_opened", "extra": {"log_version": 1, "run_id": run_id}}
    end = {"timestamp": timestamp, "event": "step_closed", "extra": {"written": len(records), "dropped": 0}}
    lines = [header, *records, *([end] if closed else [])]
    with path.open("a") as file:
        for line in lines:
            print(json.dumps({**line, "workid": worker, "step": step}, separators=(",", ":")), file=file)
    return path


def step_of(*requests, length=10):
    """Return the records of a step of 10 s, after those of its requests."""
    return [*requests, record("total_step_duration", 0, length, task=0)]


def request(name, start, end, **extra):
    """Return a request in a task of its own."""
    fields = {"request_id": name, **extra}
    task = 1 + sum(map(ord, name))
    return record("async_rollout_request_complete", start, end, extra=fields, task=task, spawned_by=0)
