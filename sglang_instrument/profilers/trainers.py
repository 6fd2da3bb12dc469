"""Find engines' addresses in the objects and logs of trainers, by the names in `patches/*/about.toml`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final

from sglang_instrument.patching.tables.about import read_abouts
from sglang_instrument.profilers.http_client import base_url

#: Returns an attribute of an object by name, or None.
ReadAttribute = Callable[[Any, str], Any]

_ADDRESS: Final = r"(?:https?://)?(?:\[[0-9a-fA-F:.]+\]|[\w.-]+):\d+"


@cache
def names_of(kind: str) -> tuple[str, ...]:
    """Return what the files about all trainers list under a key, such as "locals", each name once."""
    return tuple(dict.fromkeys(name for about in read_abouts() for name in getattr(about, kind)))


def attribute(thing: Any, name: str) -> Any:
    """Return an attribute of any object, or None."""
    return getattr(thing, name, None)


def addresses_of(thing: Any, read: ReadAttribute = attribute) -> list[str]:
    """Return the addresses of the servers that a trainer's object speaks to."""
    if isinstance(thing, str):
        return [base_url(thing)]
    for name in names_of("addresses"):
        listed = read(thing, name)
        if isinstance(listed, (list, tuple)) and listed and all(isinstance(item, str) for item in listed):
            return [base_url(address) for address in listed]
    address = _first_address(thing, names_of("address"), read)
    return [] if address is None else [address]


def router_of(thing: Any, read: ReadAttribute = attribute) -> str | None:
    """Return the address of the router that a trainer's arguments name."""
    return _first_address(thing, names_of("router"), read)


def _first_address(thing: Any, pairs: Iterable[str], read: ReadAttribute) -> str | None:
    for pair in pairs:
        host, port = (_at(thing, path, read) for path in pair.split(":"))
        if isinstance(host, str) and isinstance(port, int):
            plain = host.strip("[]")
            is_v6 = ":" in plain and "://" not in plain
            return base_url(f"[{plain}]:{port}" if is_v6 else f"{plain}:{port}")
    return None


def _at(thing: Any, path: str, read: ReadAttribute) -> Any:
    """Return the value at a dotted path of attributes, or None."""
    for name in path.split("."):
        thing = None if thing is None else read(thing, name)
    return thing


def addresses_in(log: str) -> tuple[list[str], list[str]]:
    """Return (routers, servers) that the text of a trainer's log names; only the last one of several routers.

    Servers come from the first pattern that is found, and from the last list of servers.
    """
    routers = _found("log_router", log)
    servers = next(filter(None, (_matches(pattern, log) for pattern in names_of("log_server"))), [])
    listed = _found("log_servers", log)
    if listed:
        servers = servers + re.findall(_ADDRESS, listed[-1])
    return routers[-1:], list(dict.fromkeys(servers))  # a restarted trainer starts a new router


def _found(kind: str, log: str) -> list[str]:
    return [match for pattern in names_of(kind) for match in _matches(pattern, log)]


def _matches(pattern: str, log: str) -> list[str]:
    """Return the groups of each match, joined to HOST:PORT if there are two."""
    matches = re.finditer(pattern.replace("ADDRESS", _ADDRESS), log)
    return [":".join(match.groups()) for match in matches]
