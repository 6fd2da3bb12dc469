"""Take the instrumentation out of a process of a server, and put it back, whenever a file says so.

Two servers of one command differ by more than what is to be measured, for as long as they run: by a fifth was
seen. So one server is measured with and without, in turn. Each of its processes imports this module.
"""

import gc
import os
import threading
import time
from pathlib import Path

ASKED, EVERY_SEC = "switch", 0.05


def follow(folder):
    """Do what the file says, and say so: which process did what it said."""
    done = "on"  # as SGLANG_INSTRUMENT=1 has it
    while True:
        time.sleep(EVERY_SEC)
        asked = (folder / ASKED).read_text()
        if asked == done:
            continue
        import sglang_instrument

        if asked.endswith("on"):
            sglang_instrument.install()
        else:
            sglang_instrument.uninstall()
        # Patching makes syntax trees. A round that comes upon that garbage has all objects of the process
        # looked at (0.4 s), and would be measured for what the switching did.
        gc.collect()
        done = asked
        (folder / f"{ASKED}.{os.getpid()}").write_text(done)


if "BENCH_SWITCHED" in os.environ:
    threading.Thread(target=follow, args=[Path(os.environ["BENCH_SWITCHED"])], daemon=True).start()
