"""Split the slowest requests of a run into their events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.answers.agents import request_trees
from sglang_instrument.analysis.answers.engine.calls import reported_calls
from sglang_instrument.analysis.answers.requests import request_table, waterfall
from sglang_instrument.analysis.answers.unfinished import spans_of_request
from sglang_instrument.analysis.digests.record_attempts import attempts_of
from sglang_instrument.analysis.reading.all_fields import with_texts
from sglang_instrument.analysis.timing.nesting import nest
from sglang_instrument.report.event_fields import with_words
from sglang_instrument.report.html.chosen import Chosen

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_SHOWN: Final = 12
_OF_TREE: Final = (
    *("request_id", "agent", "depth", "start_sec", "duration_sec", "path_sec"),
    *("engine_sec", "tool_sec", "response_tokens", "unended"),
)
_MOST_EVENTS: Final = 400  # per request; the timeline shows the others


def slowest_requests(run: Run) -> list[dict[str, Any]]:
    """Return the slowest requests of training steps, with their events, the engine's times and their trees.

    Where `prune` deleted the records of a step, its requests have neither.
    """
    rows = []
    trees = _trees(run)
    spans: dict[tuple[int, int], Any] = {}
    for row in request_table(run.digest).filter(validate=False).head(_SHOWN).to_dicts():
        if (row["step"], False) in run.pruned_steps:
            key = Chosen(False, row["step"]).key
            rows.append({**row, "key": key, "of_events": 0, "events": [], "calls": [], "tree": []})
            continue
        place = (row["step"], row["worker"])
        if place not in spans:
            records = run.read_records(row["step"], row["worker"], validate=False, texts=True)
            spans[place] = nest(with_texts(records).with_columns(attempts_of(records)))
        opened = spans_of_request(run, row)
        events = waterfall(spans[place], row["request_id"], attempt=row["attempt"], still_open=opened)
        rows.append(
            {
                **row,
                "key": Chosen(False, row["step"]).key,
                "of_events": len(events),
                "events": with_words(events.head(_MOST_EVENTS)).to_dicts(),
                "calls": reported_calls(run, row).head(_MOST_EVENTS).to_dicts(),
                "tree": trees.get(_key(row), [])[:_MOST_EVENTS],
            }
        )
    return rows


def _trees(run: Run) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Return for each request of a tree of agents the requests of its tree."""
    by_tree: dict[int, list[dict[str, Any]]] = {}
    table = request_trees(run.digest)
    for row in table.filter(~table["validate"]).to_dicts():
        by_tree.setdefault(row["tree"], []).append(row)
    return {
        _key(row): [{name: other[name] for name in _OF_TREE} for other in tree]
        for tree in by_tree.values()
        for row in tree
    }


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["step"], row["worker"], row["request_id"], row["attempt"]
