"""Imitate a disk that does not answer, without privileges: opening the file of step 1 blocks.

`hanging_folder.py` is a real such file system, for processes that may mount one.
"""

import os
import threading

_FILE = "step_1/worker_0.jsonl"


def until_it_answers():
    """Let `os.open` block for that file; return the event that ends the waiting."""
    answers, opened = threading.Event(), os.open

    def open_later(path, *arguments, **more):
        if str(path).endswith(_FILE):
            answers.wait()
        return opened(path, *arguments, **more)

    os.open = open_later
    return answers
