"""Record 2,000 events per second until killed; keep the number of acknowledged events in shared memory.

python killed.py DURABILITY FOLDER ACKNOWLEDGED
"""

import mmap
import struct
import sys
import time
from pathlib import Path

import sglang_instrument
from sglang_instrument import bind, span

EVENTS_PER_SEC = 2000


def main(durability, folder, acknowledged):
    with Path(acknowledged).open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 16)
    sglang_instrument.install(log_dir=folder, experiment="run", durability=durability, trainers="none")
    with bind(step=1, worker=0):
        start, number = time.perf_counter(), 0
        while True:
            while time.perf_counter() - start < number / EVENTS_PER_SEC:
                time.sleep(0.0001)
            with span("parse", number=number):
                pass
            number += 1
            memory[:8] = struct.pack("<q", number)


if __name__ == "__main__":
    main(*sys.argv[1:])
