"""`watch` needs a terminal, and ends with it, also where no signal comes."""

import os
import pty
import subprocess
import sys
import threading

from hand_written import request, step_of, write_file

#: `watch`, with the priority of any process: on a busy machine, it would hardly run.
WATCH = """
import sys
from sglang_instrument.cli.main import main
from sglang_instrument.live.terminal import app
app.yield_to_training = lambda: None
sys.exit(main())
"""


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
        assert drawn.wait(600), bytes(shown)
        assert watch.poll() is None
        os.close(ours)
        assert watch.wait(600) == 129
    finally:
        watch.kill()


def test_watch_needs_a_terminal_to_read_keys_from(tmp_path):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", WATCH, "watch", str(tmp_path)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE, text=True, timeout=600
    )
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 2
    assert "watch draws on a terminal, and reads keys from it" in done.stderr
