"""A terminal that goes away without a signal ends `watch`."""

import os
import pty
import subprocess
import sys
import threading

from hand_written import request, step_of, write_file

WATCH = "from sglang_instrument.cli.main import main; main()"


def test_watch_ends_with_a_terminal_that_is_not_its_controlling_one(tmp_path):
    write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)))
    ours, theirs = pty.openpty()
    watch = subprocess.Popen(
        [sys.executable, "-c", WATCH, "watch", str(tmp_path)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"},
        start_new_session=True,
    )
    os.close(theirs)
    shown = bytearray()
    drawn = threading.Event()

    def read():
        while not drawn.is_set():
            shown.extend(os.read(ours, 65536))
            if b"step 1" in shown:
                drawn.set()

    threading.Thread(target=read, daemon=True).start()
    try:
        assert drawn.wait(300), bytes(shown)
        assert watch.poll() is None
        os.close(ours)
        assert watch.wait(300) == 129
    finally:
        watch.kill()
