"""Switch the instrumentation of a patched process off and on without delay.

`uninstall()` and `install()` would make new code and new threads each time, which are slower at first. So
everything stays installed. Off means: the functions have their own code, spans are dropped as without
install, tasks and event loops are not watched, and our threads sleep.
"""

import random
import statistics
import time

SETTLING_SEC = 0.15  # time for our threads to write the records of a step
STEPS = 3  # measured after each switch


def put_back(on, without=None):
    """Let the patched functions run our code, or their own; call it between steps, when no span is open.

    The function `without`, by its qualified name, runs its own in any case.
    """
    from sglang_instrument.recording.measure import context, spans
    from sglang_instrument.recording.watch import event_loop
    from sglang_instrument.startup import install

    session = install._session
    swaps = [swap for swap, _ in session.patcher._swaps.values()]
    assert swaps, "nothing is patched here"
    recorder = session.recorder
    writer = recorder._writer
    was_on = spans.current_buffer() is not spans.OFF
    for swap in swaps:
        is_ours = on and swap.function.__qualname__ != without
        swap.function.__code__ = swap.ours if is_ours else swap.original
    if on and not was_on:  # as `Recorder.start()` does it
        vars(writer).pop("_may_rest", None)
        spans.know_tasks(recorder._task_seen)
        recorder._open()
        event_loop.restart_heartbeats()
    elif was_on and not on:  # as `Recorder.stop()`
        spans.use_buffer(spans.OFF)
        context.on_scope_closed(None)
        spans.ignore_tasks()
        event_loop.forget_heartbeats()
        writer._may_rest = lambda: not writer._spans  # the thread keeps sleeping: no records come


def neighbours(step, seconds, switch=put_back):
    """Yield pairs of the mean seconds of `step(recorded)`, with and without recording, in random order.

    `switch(recorded)` switches it, or whatever else is measured.

    The two of a pair follow each other directly, because the speed of a real engine changes every few
    seconds. The first step after a switch does not count: Python and the CPU's caches are still used to the
    other code, and no training switches. Nor do the first steps of all: in them threads start, and the file
    of the process is written.
    """

    def settled(recorded):
        switch(recorded)
        took = []
        for _ in range(1 + STEPS):
            took.append(step(recorded))
            time.sleep(SETTLING_SEC)
        return statistics.fmean(took[1:])

    for recorded in (True, False):
        settled(recorded)
    order, until = random.Random(0), time.monotonic() + seconds
    while time.monotonic() < until:
        first = order.random() < 0.5
        took = {recorded: settled(recorded) for recorded in (first, not first)}
        yield {"with": took[True], "without": took[False]}
