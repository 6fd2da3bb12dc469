"""Replay a recorded rollout on a real engine, to measure what another setting would change.

`agenda(run)` makes an agenda from a run's log, and `play(agenda, servers)` replays it: the extra `twin`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_instrument.twin.agendas.files import read_agenda, write_agenda
    from sglang_instrument.twin.agendas.from_log import agenda
    from sglang_instrument.twin.agendas.mooncake import mooncake_lines
    from sglang_instrument.twin.agendas.planned import (
        Agenda,
        AgendaRequest,
        AgendaStep,
        AgendaTurn,
        Sampling,
        thinned,
    )
    from sglang_instrument.twin.playing.player import Played, play

__all__ = [
    "Agenda",
    "AgendaRequest",
    "AgendaStep",
    "AgendaTurn",
    "Played",
    "Sampling",
    "agenda",
    "mooncake_lines",
    "play",
    "read_agenda",
    "thinned",
    "write_agenda",
]

#: The module of each public name. Imported at first use: asyncio and polars are slow to import.
_HOMES = {
    "Agenda": "agendas.planned",
    "AgendaRequest": "agendas.planned",
    "AgendaStep": "agendas.planned",
    "AgendaTurn": "agendas.planned",
    "Played": "playing.player",
    "Sampling": "agendas.planned",
    "agenda": "agendas.from_log",
    "mooncake_lines": "agendas.mooncake",
    "play": "playing.player",
    "read_agenda": "agendas.files",
    "thinned": "agendas.planned",
    "write_agenda": "agendas.files",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
