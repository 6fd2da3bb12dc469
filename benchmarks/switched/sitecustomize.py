"""Take the instrumentation out of a process of a server, and put it back, whenever a file says so.

Two servers of one command differ by more than what is to be measured, for as long as they run: by a fifth was
seen. So one server is measured with and without, in turn. Each of its processes imports this module.
"""

import os
import threading
import time
from pathlib import Path

from taken_out import put_back

ASKED, EVERY_SEC = "switch", 0.02
PLANTED = 0.03  # what state "slowed" takes of the time of each process, at the least


def waste(share):
    """Hold the GIL for a share of the next moments: what is planted, and has to be found."""
    until = time.monotonic() + EVERY_SEC
    while time.monotonic() < until:
        begun = time.monotonic()
        while time.monotonic() < begun + share * EVERY_SEC / 5:
            pass
        time.sleep((1 - share) * EVERY_SEC / 5)


def follow(folder):
    """Do what the file says, and say so: which process did what it said."""
    done = "on"  # as SGLANG_INSTRUMENT=1 has it
    while True:
        if done.endswith("slowed"):
            waste(PLANTED)
        else:
            time.sleep(EVERY_SEC)
        asked = (folder / ASKED).read_text()
        if asked != done:
            put_back(asked.endswith("on"))
            done = asked
            (folder / f"{ASKED}.{os.getpid()}").write_text(done)


if "BENCH_SWITCHED" in os.environ:
    threading.Thread(target=follow, args=[Path(os.environ["BENCH_SWITCHED"])], daemon=True).start()
