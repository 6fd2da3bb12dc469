"""Take the instrumentation out of a process whose functions it patched, and put it back, at once.

`uninstall()` and `install()` would make new code and new threads each time, which cost more at first than
later. So what was installed once stays: the functions get their own code back, nothing is looked at, and the
threads rest. Not wholly: in the demo they are woken some ten times a step more than with it, which samples
put at 0.1 ms, 0.02 % of a step, in our favour.
"""

import random
import time

SETTLING_SEC = 0.15  # our threads write what a step left, and rest

_changed = {}  # what constants of ours were


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


def neighbours(step, seconds):
    """Yield pairs of what `step(recorded)` returns, with and without, in random order, as long as is said.

    One right after the other: a real engine is slower for some seconds, then quicker. The first steps do not
    count: threads start there, and the file of the process is written.
    """

    def settled(recorded):
        put_back(recorded)
        answer = step(recorded)
        time.sleep(SETTLING_SEC)
        return answer

    for recorded in (True, False, True, False):
        settled(recorded)
    order, until = random.Random(0), time.monotonic() + seconds
    while time.monotonic() < until:
        first = order.random() < 0.5
        took = {recorded: settled(recorded) for recorded in (first, not first)}
        yield {"with": took[True], "without": took[False]}
