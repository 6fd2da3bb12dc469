"""Replay a recorded rollout on a real engine, to measure what another setting would change.

`agenda(run)` makes an agenda from a run's log, and `play(agenda, servers)` replays it: the extra `twin`.
"""

from importlib import import_module

#: The module of each public name. Imported at first use: asyncio and polars are slow to import.
_HOMES = {
    "Agenda": "agendas.planned",
    "Played": "playing.player",
    "AgendaRequest": "agendas.planned",
    "AgendaStep": "agendas.planned",
    "AgendaTurn": "agendas.planned",
    "agenda": "agendas.from_log",
    "mooncake_lines": "agendas.mooncake",
    "play": "playing.player",
    "read_agenda": "agendas.files",
    "thinned": "agendas.planned",
    "write_agenda": "agendas.files",
}
__all__ = sorted(_HOMES)  # noqa: PLE0605 - a list, which the linter does not see


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
