"""Ask a real server the same requests each time, and read what its processes logged of them."""

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from awaited import lines_of, wait_for_rids
from logged import read_records, recorded_events

from sglang_instrument.analysis.answers.engine.join import engine_request_table
from sglang_instrument.analysis.run.opening import Run

PROMPTS = [[300 + 7 * number + place for place in range(number % 3 + 2)] for number in range(8)]
TOKENS = 24
SAMPLING = {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
RIDS = [f"request-{number}" for number in range(len(PROMPTS))]


@dataclass
class Served:
    """What a server answered, and the run that it logged."""

    replies: list
    folder: Path

    @property
    def records(self):
        """{file: [record, ...]} of the engine's processes, without control records."""
        return {path: recorded_events(records) for path, records in read_records(self.folder).items()}

    def of(self, path, event):
        """Return the fields of the records of one event in one file."""
        return [record.get("extra", {}) for record in self.records[path] if record["event"] == event]

    def lives(self):
        """Return the join, by rid."""
        table = engine_request_table(Run.open(self.folder, cached=False))
        return {row["rid"]: row for row in table.to_dicts()}


def body(number, **sampling):
    """Return a request's body."""
    return {"input_ids": PROMPTS[number], "rid": RIDS[number], "sampling_params": {**SAMPLING, **sampling}}


def kill_scheduler(served):
    """Ask all requests of a server of `ServedParts`, then kill its scheduler while it works on one more."""
    served.begin_part("killed")
    server, log = served.server, served.log / "engine"
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        asked = [pool.submit(server.post, "/generate", body(number)) for number in range(len(PROMPTS))]
    for name, event in (("scheduler_0_tp0", "scheduler_finish"), ("server_0", "engine_request")):
        wait_for_rids(log, f"{name}.jsonl", event, RIDS)

    def ask_in_vain():
        with suppress(Exception):
            server.post("/generate", {**body(0, max_new_tokens=480), "rid": "in-vain"})

    threading.Thread(target=ask_in_vain, daemon=True).start()
    scheduler = log / "scheduler_0_tp0.jsonl"
    wait_for_rids(log, scheduler.name, "scheduler_admit", ["in-vain"])
    opened = json.loads(lines_of(scheduler)[0])
    os.kill(opened["extra"]["pid"], signal.SIGKILL)
    server.stop()
    return Served([future.result() for future in asked], served.copy_part("killed"))
