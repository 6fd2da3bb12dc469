"""Read the records that a test wrote, and list the threads of ours that run."""

import json
import threading

from sglang_instrument.recording.keep.line_types import LONGEST_LINE
from sglang_instrument.schema import CONTROL_EVENTS


def read_records(folder):
    """Return the records of each file below `folder`, by its path from there; each line must be whole.

    The follower's file is none of them.
    """
    return {
        str(path.relative_to(folder)): list(map(_read_line, path.read_bytes().splitlines(keepends=True)))
        for path in sorted(folder.rglob("*.jsonl"))
        if path.parent.name != "live"
    }


def recorded_events(records):
    """Return the records without the control records."""
    return [record for record in records if record["event"] not in CONTROL_EVENTS]


def our_threads():
    """Return our running threads."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("sglang_instrument")]


def _read_line(line):
    assert line.endswith(b"\n")
    assert len(line) <= LONGEST_LINE
    return json.loads(line, parse_constant=_refuse)


def _refuse(name):
    raise AssertionError(f"{name} is no JSON")
