"""Take the slowest requests of a run apart, event by event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.engine_calls import reported_calls
from sglang_instrument.analysis.requests import request_table, waterfall
from sglang_instrument.report.chosen import Chosen

if TYPE_CHECKING:
    from sglang_instrument.analysis.run import Run

_SHOWN: Final = 12
_MOST_EVENTS: Final = 400  # of one request: who has more finds them in the timeline


def slowest_requests(run: Run) -> list[dict[str, Any]]:
    """Return the slowest requests of the training steps, each with its events and what the engine told."""
    found = []
    spans: dict[tuple[int, int], Any] = {}
    for row in request_table(run.digest).filter(validate=False).head(_SHOWN).to_dicts():
        place = (row["step"], row["worker"])
        if place not in spans:
            spans[place] = run.read_spans(step=row["step"], worker=row["worker"], validate=False)
        events = waterfall(spans[place], row["request_id"])
        found.append(
            {
                **row,
                "key": Chosen(False, row["step"]).key,
                "of_events": len(events),
                "events": events.head(_MOST_EVENTS).to_dicts(),
                "calls": reported_calls(run, row).head(_MOST_EVENTS).to_dicts(),
            }
        )
    return found
