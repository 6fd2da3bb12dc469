"""Take the instrumentation out of a process whose functions it patched, and put it back, at once.

`uninstall()` and `install()` would make new code and new threads each time, which cost more at first than
later. So what was installed once stays: the functions get their own code back, nothing is looked at, and the
threads rest until the next span, which never comes.
"""

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
