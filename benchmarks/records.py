"""Count how many records of a run only the answers about asynchronous training need: `records.py FOLDER...`.

Nothing is recorded twice, so without these records a log has the others as they are. Bound: 2 % more records.
"""

import json
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


def counted(folder):
    """Return the numbers of records, of those that were added, of phases and requests; and of the steps."""
    found, steps = Counter(), set()
    for path in Path(folder).rglob("*.jsonl"):
        role = path.stem.partition("_")[0]
        for line in path.read_text().splitlines():
            record = json.loads(line)
            event = record["event"]
            found["records"] += 1
            found["added"] += event in ADDED.get(role, ())
            found["phases"] += role == "trainer" and event.startswith(PHASES)
            found["requests"] += event == REQUEST
            if event == "samples_consumed":
                steps.add(record.get("step"))
    return found, len(steps)


def main(folders):
    """Print a row for each run; return whether one misses the bound."""
    rows, worst = [], 0.0
    for folder in folders:
        found, steps = counted(folder)
        more = found["added"] + found["phases"]
        share = more / (found["records"] - more)
        worst = max(worst, share)
        numbers = (found["records"], found["requests"], steps, found["added"], found["phases"])
        rows.append((Path(folder).name, *(f"{one:,}" for one in numbers), f"{share:.2%}"))
    names = ("run", "records", "requests", "steps", "samples, queue, updates", "phases", "more")
    print(table("records that only these answers need", names, rows))
    return worst > BOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
