"""Take the instrumentation out of a process whose functions it patched, and put it back, at once.

`uninstall()` and `install()` would make new code and new threads each time, which cost more at first than
later. So what was installed once stays: the functions get their own code back, spans go nowhere, as where
nothing is installed, nobody asks for tasks, no loop is looked at, and the threads sleep.
"""

import random
import time

SETTLING_SEC = 0.15  # our threads write what a step left, and rest


def put_back(on):
    """Let the patched functions run our code, or their own; between two steps, with no span open."""
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
        swap.function.__code__ = swap.ours if on else swap.original
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
        writer._may_rest = lambda: not writer._spans  # the thread sleeps on: nothing will come


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
