"""Choose ports for servers that listen later, so that no two programs choose the same one."""

import random
import socket
from typing import Final

from sglang_instrument.errors import InstrumentError

_PORTS: Final = range(15_000, 32_000)  # below those that the kernel gives to connections

_reserved: Final[list[socket.socket]] = []


def free_port() -> int:
    """Return a port that a server of this machine can listen at, whenever it begins to.

    The port stays bound while this process lives. A server still gets it, since it asks for an address that
    may be reused, as servers do; the next caller of this function, in any process, does not.

    Raises:
        InstrumentError: No port is free.
    """
    draw = random.SystemRandom()  # no seed that processes share
    for port in draw.sample(_PORTS, len(_PORTS)):
        bound = socket.socket()
        try:
            bound.bind(("127.0.0.1", port))
        except OSError:
            bound.close()
            continue
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # only now: the bind was for a free one
        _reserved.append(bound)
        return port
    raise InstrumentError("no port is free")
