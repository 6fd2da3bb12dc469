"""Choose the server of each call, where no router does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from sglang_instrument.errors import InstrumentError
from sglang_instrument.twin.agendas.planned import AgendaRequest, AgendaStep

RECORDED: Final = "recorded"
GROUP: Final = "group"
CALL: Final = "call"
ROUTES: Final = (RECORDED, GROUP, CALL)

#: The address for a turn of a request.
Route = Callable[[AgendaRequest, int], str]


def route_of(step: AgendaStep, urls: Sequence[str], rule: str | None) -> Route:
    """Return what chooses the server of each turn.

    Args:
        step: The step.
        urls: The servers' addresses.
        rule: "recorded": the servers of the record, in the order of their names, are these; "group": all
            requests of a group go to one server; "call": in turn. None: as recorded if there are as many
            servers as in the record, else by group.

    Raises:
        InstrumentError: There is no such rule, or the log does not tell servers, or tells more of them.
    """
    if len(urls) == 1:
        return lambda request, turn: urls[0]
    if rule not in (None, *ROUTES):
        raise InstrumentError(f"a route is one of {', '.join(ROUTES)}, got {rule!r}")
    named = {turn.server for turn in step.turns}
    known = sorted(name for name in named if name is not None)
    as_recorded = None not in named and len(known) <= len(urls)
    if rule == RECORDED and not as_recorded:
        raise InstrumentError(
            f"step {step.step} was served by {len(known)} known servers, and there are {len(urls)}: "
            f"route by {GROUP} or {CALL}"
        )
    if rule == RECORDED or (rule is None and as_recorded and len(known) == len(urls)):
        url_of = dict(zip(known, urls, strict=False))
        return lambda request, turn: url_of[str(request.turns[turn].server)]
    if rule == CALL:
        turns = count()
        return lambda request, turn: urls[next(turns) % len(urls)]
    groups = {group: place for place, group in enumerate(dict.fromkeys(r.group for r in step.requests))}
    return lambda request, turn: urls[groups[request.group] % len(urls)]
