"""A disk that does not answer, made without rights of any kind: whoever opens the file of step 1 waits.

`hanging_folder.py` is the real thing, where a process may mount one.
"""

import os
import threading

_FILE = "step_1/worker_0.jsonl"


def until_it_answers():
    """Let whoever opens that file wait in `os.open`; return the event that ends the waiting."""
    answers, opened = threading.Event(), os.open

    def open_later(path, *arguments, **more):
        if str(path).endswith(_FILE):
            answers.wait()
        return opened(path, *arguments, **more)

    os.open = open_later
    return answers
