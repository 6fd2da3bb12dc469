"""Say what to bind in a rollout that no table knows: where a step and a request begin, and an example."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sglang_instrument.errors import InstrumentError
from sglang_instrument.patching.places.source_archives import open_tree
from sglang_instrument.patching.suggest.find_class import find_class
from sglang_instrument.patching.suggest.measured import measured_by, without_measured
from sglang_instrument.patching.suggest.methods import Methods
from sglang_instrument.patching.suggest.proposal import REQUEST, STEP, Proposals, propose
from sglang_instrument.patching.tables.reading import load_tables

#: What to do where only the engine is known.
ALONE: Final = (
    "no trainer of the tables is here: the engine's calls are recorded, but no step, worker or turn; bind "
    "them: `with sglang_instrument.bind(step=n, worker=rank): ...` around each step; `sglang-instrument "
    "doctor --rollout FILE.py:Class` names the functions"
)

#: about, ok, result, todo: as a `Diagnosis` of `doctor`.
Row = tuple[str, bool | None, str, str]


def examine_rollout(named: str, source: Path | None = None) -> Iterator[Row]:
    """Yield what to bind in a class or a function that a user names as MODULE:NAME or FILE:NAME."""
    try:
        methods, _ = find_class(named, None if source is None else open_tree(source))
    except InstrumentError as error:
        yield "rollout", False, str(error), "name a class as FILE.py:Class"
        return
    proposals = propose(methods)
    measured = measured_by(methods, load_tables())
    if measured:
        yield from _what_to_add(named, measured, without_measured(proposals))
        return
    if proposals.request is None:
        todo = "name the class that calls the engine, such as by engine.async_generate(...)"
        yield "rollout", False, f"{named}: no call of an engine is in it", todo
        return
    yield from _what_to_bind(methods, proposals)
    yield (
        "table",
        None,
        f"`sglang-instrument patches suggest {named}` writes a table that does this without code",
        "",
    )


def _what_to_add(named: str, measured: list[str], proposals: Proposals) -> Iterator[Row]:
    """Yield what a class lacks whose trainer is measured: steps and requests are bound."""
    tables = ", ".join(measured)
    yield "rollout", True, f"{named}: {tables} records its steps, requests and calls of the engine", ""
    for name, regions in proposals.of.items():
        events = ", ".join(dict.fromkeys(region.event for region in regions))
        yield (
            events,
            None,
            f"in {name}: `sglang-instrument patches suggest {named}` writes a table for it",
            "",
        )
    example = '@sglang_instrument.instrument("tool")'
    yield "tools", None, f"{example} above a function of your own names it; nothing else is to bind", ""


def _what_to_bind(methods: Methods, proposals: Proposals) -> Iterator[Row]:
    step, request = proposals.step or proposals.request, str(proposals.request)
    bound = next(region for region in proposals.of[str(step)] if region.event in (STEP, REQUEST)).bind
    number = bound.get("step", "n")
    where = f"{methods.module}:{methods.target(str(step))} (line {methods.functions[str(step)].lineno})"
    number_words = f", which has its number: {number}" if "step" in bound else ", which shows no number of it"
    yield "step", None, f"bind it around {where}{number_words}", ""
    yield "worker", None, "bind the rank of the process, where the variable RANK does not have it", ""
    request_bound = next(region for region in proposals.of[request] if region.event == REQUEST).bind
    given = request_bound.get("request_id")
    where = f"{methods.module}:{methods.target(request)} (line {methods.functions[request].lineno})"
    id_words = f", which is given its id: {given}" if given else ", which is given no id: make one"
    yield "request", None, f"bind it in {where}{id_words}", ""
    around = f"with sglang_instrument.bind(step={number}, worker=rank): {methods.target(str(step))}(...)"
    yield "example", None, around, ""
    given = given or "uuid4().hex"
    inside = f'with sglang_instrument.bind(request_id={given}), sglang_instrument.span("request"): ...'
    yield "example", None, f"{inside}  # in {methods.target(request)}", ""
