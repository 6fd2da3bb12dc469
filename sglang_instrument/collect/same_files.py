"""Tell which nodes hold the same file, and give files of one name that differ names of their own.

Nodes may share a disk, or each have one. Two nodes that both hold `step_3/worker_0.jsonl` then hold either
one file or two. The first line of a log has the host, the process id and the time of its writer, so different
first lines mean different files. The same first line and the same inode mean one file. The same first line
and another inode mean a copy, or a file system that makes inodes up: then the bytes that both have decide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from sglang_instrument.collect.collected import PRUNED, Collected
from sglang_instrument.config import component

_ENDINGS: Final = (".jsonl.zst", ".jsonl")


@dataclass(frozen=True, slots=True)
class Offer:
    """A file that a node holds; see `on_node.describe`."""

    node: str
    path: str
    size: int
    whole: int
    mtime_ns: int
    inode: int
    key: str
    is_log: bool


#: (node, path, bytes): the hash of these first bytes there; "" if the node does not answer.
HashThere = Callable[[str, str, int], str]
#: (file, bytes): the hash of these first bytes here.
HashHere = Callable[[Collected, int], str]


def match(
    files: list[Collected], offers: Iterable[Offer], hash_there: HashThere, hash_here: HashHere
) -> list[tuple[Collected, list[Offer]]]:
    """Return each file with the nodes that offer it; files that are new are added to `files`, with a name.

    Args:
        files: What was collected before.
        offers: What the nodes hold now.
        hash_there: Asks a node.
        hash_here: Reads what is here.
    """
    known: dict[str, list[tuple[Collected, list[Offer]]]] = defaultdict(list)
    for file in files:
        known[file.path].append((file, []))
    new = []
    for offer in offers:
        same = _find(known[offer.path], offer, hash_there, hash_here)
        if same is None:
            file = Collected(offer.path, "", offer.key, offer.inode, offer.is_log, [])
            same = file, []
            known[offer.path].append(same)
            new.append(file)
        file, held_by = same
        held_by.append(offer)
        if not file.is_log:
            file.key, file.inode = offer.key, offer.inode
        if offer.node not in file.nodes:
            file.nodes = sorted({*file.nodes, offer.node})
    _name(files, new)
    files += new
    return [held for of_path in known.values() for held in of_path if held[1]]


def _find(
    known: Sequence[tuple[Collected, list[Offer]]],
    offer: Offer,
    hash_there: HashThere,
    hash_here: HashHere,
) -> tuple[Collected, list[Offer]] | None:
    """Return the known file that an offer is; None if it is new."""
    same_key = [held for held in known if held[0].key == offer.key]
    if offer.path.startswith("processes/") and same_key:  # one process: the newest description counts
        return same_key[0]
    for held in same_key:
        if held[0].inode == offer.inode:
            return held
    for held in same_key:
        if _begins_alike(held, offer, hash_there, hash_here):
            return held
    if not offer.is_log:  # written anew as a whole: the node's own file of this name is replaced
        return next((held for held in known if offer.node in held[0].nodes and not held[1]), None)
    return None


def _begins_alike(
    known: tuple[Collected, list[Offer]], offer: Offer, hash_there: HashThere, hash_here: HashHere
) -> bool:
    """Return whether a known file and an offered one agree in all bytes that both have."""
    file, others = known
    if others:
        both = min(others[0].whole, offer.whole)
        expected = hash_there(others[0].node, file.path, both)
    else:
        both = min(file.held, offer.whole)
        if not both:  # nothing of it is here yet
            return True
        expected = hash_here(file, both)
    return bool(expected) and hash_there(offer.node, offer.path, both) == expected


def _name(files: Sequence[Collected], new: Sequence[Collected]) -> None:
    """Give each new file its path here: its own, or with its node's name, if another disk holds that name.

    A process keeps one name in all folders, for readers join `step_3/worker_0.jsonl`, `step_4/worker_0.jsonl`
    and `processes/worker_0.json` by it. Files of one name are of one disk if a node sees both.
    """
    named: dict[str, list[tuple[set[str], str]]] = defaultdict(list)  # stem: its disks, and what each adds
    taken = {file.target for file in files}
    for file in files:
        _note(named[_split(file.path)[0]], set(file.nodes), _added(file))
    for file in new:
        if file.path.startswith(f"{PRUNED}/"):  # the name of its folder is like no other
            file.target = file.path
            continue
        stem = _split(file.path)[0]
        nodes = set(file.nodes)
        disks = named[stem]
        added = next((added for disk, added in disks if disk & nodes), None)
        if added is None:
            added = f".{component(file.nodes[0])}" if any(not own_added for _, own_added in disks) else ""
        file.target = _with(file.path, added)
        number = 1
        while file.target in taken:  # the same node made a new file of this name
            number += 1
            file.target = _with(file.path, f".{component(file.nodes[0])}-{number}")
        taken.add(file.target)
        _note(disks, nodes, added)


def _note(disks: list[tuple[set[str], str]], nodes: set[str], added: str) -> None:
    for disk, known in disks:
        if known == added:
            disk.update(nodes)
            return
    disks.append((set(nodes), added))


def _split(path: str) -> tuple[str, str]:
    """Return the stem of a file's name, which names its process, and its ending."""
    name = PurePosixPath(path).name
    ending = next(filter(name.endswith, _ENDINGS), PurePosixPath(name).suffix)
    return name.removesuffix(ending), ending


def _with(path: str, added: str) -> str:
    stem, ending = _split(path)
    return str(PurePosixPath(path).with_name(f"{stem}{added}{ending}"))


def _added(file: Collected) -> str:
    """Return what the name of a file here has more than its name on the node."""
    return _split(file.target)[0].removeprefix(_split(file.path)[0])
