"""Follow a run in a process of its own, and print what that costs: `python following.py FOLDER`."""

import json
import resource
import sys
import threading
import time
from pathlib import Path


def main(folder):
    """Print a line of JSON each quarter of a second, until stdin ends; the last one after catching up."""
    from sglang_instrument.live.follower import Follower

    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
    follower = Follower(Path(folder))
    print("ready", flush=True)
    follower.start()
    quiet_since = None
    while True:
        costs = cost(follower.snapshot())
        print(json.dumps(costs), flush=True)
        time.sleep(0.25)
        now = time.monotonic()
        if follower.snapshot().behind_sec > 1 or not ended.is_set() or costs["records"] == 0:
            quiet_since = None
        elif quiet_since is None:
            quiet_since = now
        elif now - quiet_since > (60 if is_analysed_later(follower.snapshot()) else 3):
            break
    follower.stop()
    begun = time.process_time()
    follower.round()
    took = time.process_time() - begun
    print(json.dumps({**cost(follower.snapshot()), "round_ms": took * 1e3}))


def is_analysed_later(snapshot):
    return snapshot.step is not None and snapshot.step.is_over and not snapshot.done


def cost(snapshot):
    process, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {
        "at": time.time(),
        "records": sum(totals.records for totals in snapshot.totals.values()),
        "open": 0 if snapshot.step is None else snapshot.step.requests_open,
        "cpu_sec": process.ru_utime + process.ru_stime,
        "analyst_sec": children.ru_utime + children.ru_stime,
        "analyst_mb": children.ru_maxrss / 1024,
        "peak_mb": peak_mb(),
    }


def peak_mb():
    """Return the peak of this process; `ru_maxrss` would be that of its parent, if that was larger."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


if __name__ == "__main__":
    main(sys.argv[1])
