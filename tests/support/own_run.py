"""Record a run with fields and events of the user's own, as the README shows them."""

import math

import sglang_instrument
from sglang_instrument import bind, event, span

#: Fields as a user may name and fill them.
ODD = {"flag": True, "nested": {"a": {"b": [1, None]}}, "big": 10**30, "nan": math.nan, 'we"ird.na:me': 2.5}


def record_requests():
    """Record two requests of two turns each in step 12, and stop recording."""
    for number, request in enumerate(("r7", "r8")):
        with bind(step=12, request_id=request), span("async_rollout_request_complete"):
            for turn in range(2):
                with bind(turn=turn), span("parse", **ODD) as timed:
                    timed.add(tool_calls=3 + turn + 10 * number, parser=f"json{turn}")
                    event("cache_hit", tokens=17)
    sglang_instrument.uninstall()
