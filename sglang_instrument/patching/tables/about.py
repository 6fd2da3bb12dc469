"""Read `patches/<trainer>/about.toml`: what is true of a trainer as a whole and no patch table says.

`patches/README.md` describes the keys.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from sglang_instrument.patching.tables.entry import Entry
from sglang_instrument.patching.tables.shipped import abouts, read_table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

_KEYS: Final = frozenset({"oldest", "read", "tested", "engines", "log"})
_ENGINE_KEYS: Final = frozenset({"locals", "attributes", "addresses", "address", "router"})
_LOG_KEYS: Final = frozenset({"router", "server", "servers"})


@dataclass(frozen=True)
class About:
    """What is true of a trainer as a whole.

    Attributes:
        trainer: The name of its folder.
        oldest: The oldest version that the support matrix reads; None if no package index has the trainer.
        read: The versions that were read by hand, of a trainer that no package index has; None if none was.
        tested: By name of a patch table, what a test runs.
        locals: Local variables of the trainer's functions that lead to an engine.
        attributes: Attributes of those objects that lead to an engine.
        addresses: Attributes that list the addresses of servers.
        address: Attributes with the host and the port of one server, as "HOST:PORT".
        router: As `address`, of the router.
        log_router: Regular expressions whose group is the router's address in a line of the trainer's log.
        log_server: The same for one server; the groups are the address, or host and port.
        log_servers: The same for a list of all servers.
    """

    trainer: str
    oldest: str | None
    read: str | None
    tested: Mapping[str, str]
    locals: tuple[str, ...]
    attributes: tuple[str, ...]
    addresses: tuple[str, ...]
    address: tuple[str, ...]
    router: tuple[str, ...]
    log_router: tuple[str, ...]
    log_server: tuple[str, ...]
    log_servers: tuple[str, ...]


@cache
def read_abouts() -> tuple[About, ...]:
    """Return what the shipped files say, sorted by trainer.

    Raises:
        TableError: A file has an unknown key or a value of the wrong type.
    """
    return tuple(_read(name) for name in abouts())


def _read(name: str) -> About:
    where = f"patches/{name}.toml"
    entry = Entry(where, tomllib.loads(read_table(name)), _KEYS)
    engines, log = entry.below("engines", _ENGINE_KEYS), entry.below("log", _LOG_KEYS)
    return About(
        trainer=name.partition("/")[0],
        oldest=entry.text("oldest"),
        read=entry.text("read"),
        tested=entry.expressions("tested"),
        **{key: engines.texts(key) for key in sorted(_ENGINE_KEYS)},
        **{f"log_{key}": log.texts(key) for key in sorted(_LOG_KEYS)},
    )
