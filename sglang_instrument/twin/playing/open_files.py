"""Allow this process as many open connections as it needs."""

from __future__ import annotations

import resource
from typing import Final

from sglang_instrument.errors import InstrumentError

_SPARE: Final = 256


def allow_open_files(connections: int) -> None:
    """Raise the limit of open files to what a step needs.

    Raises:
        InstrumentError: The hard limit is lower.
    """
    needed = connections + _SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise InstrumentError(f"{connections:,} open requests need `ulimit -n {needed}`; it is {hard:,}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
