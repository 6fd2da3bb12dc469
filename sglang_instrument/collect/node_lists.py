"""Read lists of nodes: `a,b`, Slurm's `node[001-004,7]`, and host files of MPI and pdsh."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sglang_instrument.errors import InstrumentError
from sglang_instrument.regular_files import read_regular

_MOST_NODES: Final = 100_000
_HOST: Final = re.compile(r"[A-Za-z0-9_][\w.:@-]*", re.ASCII)  # never an option of ssh
_RANGE: Final = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def parse_nodes(text: str) -> list[str]:
    """Return the hosts of a list, each once, in order.

    Args:
        text: Hosts and Slurm's ranges, with commas between them: `login1,node[001-004,7],r[1-2]n[1-8]`.

    Raises:
        InstrumentError: The list is empty, or a part of it is neither a host nor a range.
    """
    hosts = list(dict.fromkeys(host for part in _split(text) for host in _expand(part, text)))
    if not hosts:
        raise InstrumentError(f"no hosts in {text!r}; give them as node1,node2 or node[001-004,7]")
    for host in hosts:
        if _HOST.fullmatch(host) is None:
            raise InstrumentError(f"{host!r} is not a host; give them as node1,node2 or node[001-004,7]")
    return hosts


def read_hostfile(path: Path) -> list[str]:
    """Return the hosts of a file: the first word of each line, without comments (`node1 slots=8  # fast`).

    Raises:
        InstrumentError: The file cannot be read, or has no hosts.
    """
    try:
        lines = read_regular(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InstrumentError(f"--hostfile {path}: {error}") from None
    words = [line.partition("#")[0].split()[:1] for line in lines]
    return parse_nodes(",".join(word for words_of_line in words for word in words_of_line))


def _split(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]


def _expand(part: str, text: str) -> Iterator[str]:
    """Yield the hosts of one part, whose brackets may be several."""
    before, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    inside, closed, after = rest.partition("]")
    if not closed:
        raise InstrumentError(f"{text!r}: the bracket of {part!r} does not end; write node[001-004,7]")
    numbers = [number for piece in inside.split(",") for number in _numbers(piece.strip(), text)]
    tails = list(_expand(after, text)) if after else [""]
    yield from (f"{before}{number}{tail}" for number in numbers for tail in tails)


def _numbers(piece: str, text: str) -> Iterator[str]:
    """Yield the numbers of `001-004`, as wide as the first is written."""
    match = _RANGE.fullmatch(piece)
    if match is None:
        raise InstrumentError(f"{text!r}: {piece!r} is not a number or a range such as 001-004")
    first, last = int(match[1]), int(match[2] or match[1])
    if not 0 <= last - first < _MOST_NODES:
        raise InstrumentError(f"{text!r}: {piece!r} ends before it begins, or has over {_MOST_NODES:,} nodes")
    width = len(match[1])
    yield from (f"{number:0{width}d}" for number in range(first, last + 1))
