"""Count how many records of a run only the answers about asynchronous training need: `records.py FOLDER...`.

Nothing is recorded twice, so without these records a log has the others as they are. Bound: 2 % more records.
"""

import json
import math
import sys
from collections import Counter
from pathlib import Path

from rounds import table

BOUND = 0.02
#: The events that were added for these answers, by the role of the process that logs them.
ADDED = {
    "scheduler": {
        "weights_update",
        "engine_cache_flush",
        "generation_pause",
        "generation_continue",
        "scheduler_abort",
    },
    "server": {"generation_drain"},
    "trainer": {"samples_consumed", "samples_dropped"},
    "learner": {"samples_consumed", "samples_dropped"},
    "worker": {"samples_consumed", "samples_dropped"},
    "rollouter": {"queue_put", "samples_dropped", "engine_start_wait"},
}
#: Phases of verl's trainers apart from their rollouts; other trainers logged theirs before.
PHASES = "trainer_"
REQUEST = "async_rollout_request_complete"
BY_GROUP = "queue_put"
#: Their number depends on the machine and on time, not on the work: they would make the share too small.
BY_THE_CLOCK = ("event_loop_lag", "event_loop_block", "open_now", "open_spans")


def counted(folder):
    """Return the numbers of records, of those that were added, of phases and requests; and of the steps."""
    counts, steps = Counter(), set()
    folders = [*Path(folder).glob("step_*"), *Path(folder).glob("validate_*"), Path(folder) / "engine"]
    for path in (file for subfolder in folders for file in subfolder.glob("*.jsonl")):
        role = path.stem.partition("_")[0]
        for line in path.read_text().splitlines():
            record = json.loads(line)
            event = record["event"]
            counts["records"] += event not in BY_THE_CLOCK
            counts[BY_GROUP] += event == BY_GROUP
            counts["added"] += event in ADDED.get(role, ())
            counts["phases"] += role == "trainer" and event.startswith(PHASES)
            counts["requests"] += event == REQUEST
            if event == "samples_consumed":
                steps.add(record.get("step"))
    return counts, len(steps)


def row_of(folder):
    """Return the row of a run, and by how much its records are more.

    A step has so many of the added records whatever its requests, but for one a group: the last column says
    from how many requests a step on the share is within the bound.
    """
    counts, steps = counted(folder)
    more = counts["added"] + counts["phases"]
    before = max(1, counts["records"] - more)
    share, enough = more / before, "-"
    if steps and counts["requests"]:
        room = (BOUND * before - counts[BY_GROUP]) / counts["requests"]
        enough = f"{math.ceil((more - counts[BY_GROUP]) / steps / room):,}" if room > 0 else "never"
    numbers = (counts["records"], counts["requests"], steps, counts["added"], counts["phases"])
    return (str(folder), *(f"{number:,}" for number in numbers), f"{share:.2%}", enough), share


def main(folders):
    """Print a row for each run; return whether one misses the bound."""
    rows, shares = zip(*map(row_of, folders), strict=True)
    names = ("run", "records", "requests", "steps", "samples, queue, updates", "phases", "more")
    print(table("records that only these answers need", (*names, "2 % from requests a step"), rows))
    return max(shares) > BOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
