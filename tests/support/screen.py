"""What the follower's terminal shows: its text, and to wait until it shows something."""

import time

ENDS_SEC = 600  # only a dead machine takes longer


def shown(app):
    """Return the text of the top screen, line by line."""
    lines = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in lines)


async def until(app, pilot, condition):
    """Wait until a condition holds for the text of the top screen; return the text."""
    ends = time.monotonic() + ENDS_SEC
    while not condition(text := shown(app)):
        assert time.monotonic() < ends, text
        await pilot.pause(0.05)
    return text


async def until_shown(app, pilot, *words):
    """Wait until the top screen shows all of these; return its text."""
    return await until(app, pilot, lambda text: all(word in text for word in words))
