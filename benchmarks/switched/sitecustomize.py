"""Take the instrumentation out of a process of a server, and put it back, whenever a file says so.

Two servers of one command differ by more than what is to be measured, for as long as they run: by a fifth was
seen. So one server is measured with and without, in turn. Each of its processes imports this module.

`uninstall()` and `install()` would make new code and new threads each time, which cost more at first than
later. So what was installed when the server began stays: its functions get their own code back, nothing is
looked at, and the threads rest until the next span, which never comes.
"""

import os
import threading
import time
from pathlib import Path

ASKED, EVERY_SEC = "switch", 0.05
PLANTED = 0.03  # what state "slowed" takes of the time


def put_back(on):
    """Let the patched functions run our code, or their own."""
    from sglang_instrument import switch
    from sglang_instrument.recording import loop, writer

    swaps = [swap for swap, _ in switch._session.patcher._swaps.values()]
    assert swaps, "nothing is patched here"
    for swap in swaps:
        swap.function.__code__ = swap.ours if on else swap.original
    if not on:
        loop.forget_hearts()  # the next task with a span has them beat again
    rests_after = _changed.setdefault("_RESTS_AFTER", writer._RESTS_AFTER)
    writer._RESTS_AFTER = rests_after if on else 1


_changed = {}  # what constants of ours were


def waste(share):
    """Hold the GIL for a share of the next 50 ms: what is planted, and has to be found."""
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
        waste(PLANTED) if done.endswith("slowed") else time.sleep(EVERY_SEC)
        asked = (folder / ASKED).read_text()
        if asked != done:
            put_back(asked.endswith("on"))
            done = asked
            (folder / f"{ASKED}.{os.getpid()}").write_text(done)


if "BENCH_SWITCHED" in os.environ:
    threading.Thread(target=follow, args=[Path(os.environ["BENCH_SWITCHED"])], daemon=True).start()
