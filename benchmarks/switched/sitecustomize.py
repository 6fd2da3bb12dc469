"""Switch the instrumentation of a server's process off and on, as a file says.

Two servers that one command starts can differ by a fifth for as long as they run, which is more than the
effect to measure. So one server is measured alternately with and without instrumentation. Each of its
processes imports this module.
"""

import os
import threading
import time
from pathlib import Path

from taken_out import put_back

ASKED, EVERY_SEC = "switch", 0.02
GAUGED = "Scheduler.run_batch"  # of which only the gauges are recorded, with engine_detail="requests"
PLANTED = 0.03  # state "slowed" wastes at least this share of each process's time


def waste(share):
    """Hold the GIL for a share of the time: a planted slowdown that the benchmark must find."""
    until = time.monotonic() + EVERY_SEC
    while time.monotonic() < until:
        begun = time.monotonic()
        while time.monotonic() < begun + share * EVERY_SEC / 5:
            pass
        time.sleep((1 - share) * EVERY_SEC / 5)


def follow(folder):
    """Switch to the state in the file, and confirm it in a file of this process."""
    done = "on"  # the state with SGLANG_INSTRUMENT=1
    while True:
        if done.endswith("slowed"):
            waste(PLANTED)
        else:
            time.sleep(EVERY_SEC)
        asked = (folder / ASKED).read_text()
        if asked != done:
            state = asked.rpartition(" ")[2]
            put_back(state in ("on", "ungauged"), GAUGED if state == "ungauged" else None)
            done = asked
            (folder / f"{ASKED}.{os.getpid()}").write_text(done)


if "BENCH_SWITCHED" in os.environ:
    threading.Thread(target=follow, args=[Path(os.environ["BENCH_SWITCHED"])], daemon=True).start()
