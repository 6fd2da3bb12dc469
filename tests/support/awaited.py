"""Wait until processes that go on running have written what a test looks for."""

import json
import time

DEADLINE_SEC = 1200  # the machine may be busy


def wait_for(condition, what, every_sec=0.05):
    """Wait until a condition holds; `what` says what is missing, or returns it."""
    deadline = time.monotonic() + DEADLINE_SEC
    while not condition():
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(every_sec)


def lines_of(path):
    """Return the whole lines of a log that may grow or not be there yet."""
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def records_of(folder, pattern, event):
    """Return the records of an event that some files of a folder have by now."""
    records = [json.loads(line) for path in folder.glob(pattern) for line in lines_of(path)]
    return [record for record in records if record["event"] == event]


def rids_of(records):
    """Return the requests of the engine that records name."""
    extras = [record.get("extra", {}) for record in records]
    return {rid for extra in extras for rid in extra.get("rids") or [extra.get("rid")]}


def wait_for_rids(folder, pattern, event, rids):
    """Wait until some files of a folder have this event of each request."""

    def missing():
        return set(rids) - rids_of(records_of(folder, pattern, event))

    wait_for(lambda: not missing(), lambda: f"{folder}/{pattern}: no {event} of {missing()}")
