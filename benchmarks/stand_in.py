"""Log one event as the reference does; all numbers here are relative to this code's cost.

It favours the reference: the path is made beforehand, and `torch.cuda.synchronize()` is left out.
"""

import datetime
import json
from pathlib import Path


class StandIn:
    """Builds a dict, orders it, encodes it as JSON, writes the line and flushes; one open file per path."""

    def __init__(self):
        self.handles = {}

    def log(self, path, event, duration=None, extra=None, workid=None, step=None, **more):
        handle = self.handles.get(path)
        if handle is None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            handle = self.handles[path] = Path(path).open("a", buffering=1)  # noqa: SIM115 - open for good
        handle.write(json.dumps(entry(event, duration, extra, workid, step, more)) + "\n")
        handle.flush()


def entry(event, duration, extra, workid, step, more):
    """Return the record as the reference orders it."""
    record = {"timestamp": datetime.datetime.now().isoformat(), "event": event}
    if duration is not None:
        record["duration_sec"] = duration
    if extra is not None:
        record["extra"] = extra
    if workid is not None:
        record["workid"] = workid
    if step is not None:
        record["step"] = step
    record.update(more)
    first = ["timestamp", "event", "duration_sec"]
    order = first + [key for key in record if key not in first]
    return {key: record[key] for key in order if key in record}
