"""End with the terminal, also where no signal comes when it goes away.

A terminal that is not the controlling one, as in many containers, only goes away. Textual's input thread
then reads end-of-file again and again, which takes a whole core.
"""

import os
import select
import signal
import threading
from typing import Final

_GONE: Final = select.POLLHUP | select.POLLERR


def end_with_terminal(descriptor: int) -> None:
    """End this process, as by SIGHUP, when a terminal goes away.

    Args:
        descriptor: The terminal.
    """
    threading.Thread(target=_wait, args=(descriptor,), name="hang-up", daemon=True).start()


def _wait(descriptor: int) -> None:
    hang_up = select.poll()
    hang_up.register(descriptor, 0)
    [(_, event)] = hang_up.poll()
    if event & _GONE:  # and not POLLNVAL, of systems that cannot poll terminals
        os._exit(128 + signal.SIGHUP)
