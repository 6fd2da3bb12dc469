"""Find a run's files on the nodes of a cluster: which files there are, and which nodes hold each.

A file that several nodes hold, because they share a disk, counts once. Different files of one name both
count: they get the names that `collect` would give them.
"""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sglang_instrument.collect import on_node
from sglang_instrument.collect.by_ray import RayNode, RayNodes, connect
from sglang_instrument.collect.gather import CHUNK_BYTES, in_chunks, is_inside, pieces_of
from sglang_instrument.collect.same_files import Offer, match
from sglang_instrument.safe_files.folder import SafeFolder, write_whole

#: What `on` is for the cluster that this machine belongs to.
HERE: Final = "ray"
_MOST_NODES: Final = 32  # asked at once


def cluster_at(on: str) -> Any:
    """Return Ray, connected to a cluster: `HERE`, or the one at an address.

    Raises:
        InstrumentError: Ray is not installed, or there is no such cluster.
    """
    return connect("auto" if on == HERE else on, {})


def where_on_nodes(folder: Path) -> str:
    """Return a run's folder as the nodes shall name it; they expand variables."""
    return str(folder) if str(folder).startswith("$") else os.path.abspath(folder)  # noqa: PTH100


def sizes_on_nodes(folder: Path, on: str) -> list[dict[str, tuple[int, int, int]]]:
    """Return what each node that answers has in a run's folder: `on_node.sizes`.

    Raises:
        InstrumentError: Ray is not installed, or there is no such cluster.
    """

    def sizes(node: RayNode) -> dict[str, tuple[int, int, int]]:
        try:
            [sizes_there] = node.calls(on_node.sizes, [(where_on_nodes(folder),)])
        except Exception:  # whatever Ray raises for a node that dies; an executor names it
            return {}
        return dict(sizes_there)

    nodes = RayNodes(cluster_at(on)).nodes().values()
    with ThreadPoolExecutor(_MOST_NODES) as threads:
        return list(threads.map(sizes, nodes))


@dataclass(frozen=True)
class HeldFile:
    """A file of the run. `offers` has by node's name what that node holds: the same file."""

    offers: dict[str, Offer]

    @property
    def longest(self) -> Offer:
        """The file as the node sees it that sees most of it."""
        return max(self.offers.values(), key=lambda offer: (offer.size, offer.mtime_ns))


class FilesOnNodes:
    """The files of a run on the nodes of a cluster.

    Args:
        where: The run's folder on the nodes.
        source: The cluster.
        only: Names of folders in it, as if there were nothing else; None stands for all.

    Attributes:
        where: The run's folder on the nodes.
        nodes: The nodes that answer, by name.
        absent: Why other nodes do not, by name.
        held: The files, by their path in the run.
    """

    def __init__(self, where: str, source: RayNodes, only: Sequence[str] | None = None) -> None:
        self.where = where
        self._only = None if only is None else list(only)
        self.absent: dict[str, str] = {}
        self.nodes: dict[str, RayNode] = {}
        offers: list[Offer] = []
        while new := [node for node in source.nodes().values() if not self._is_known(node)]:  # some join late
            self.nodes |= {node.name: node for node in new}
            with ThreadPoolExecutor(_MOST_NODES) as threads:
                offers += [
                    offer for offers_of_node in threads.map(self._look, new) for offer in offers_of_node
                ]
        self.absent = {**source.lost(), **self.absent}
        matched = match([], offers, self._hash_there, lambda file, size: "")
        self.held = {file.target: HeldFile({offer.node: offer for offer in same}) for file, same in matched}

    def forget(self, name: str) -> None:
        """Ask a node no more, because it failed."""
        self.nodes.pop(name, None)

    def bring(self, paths: Sequence[str], folder: Path) -> None:
        """Write files of the run into a folder of this machine.

        Raises:
            OSError: No node that holds a file answers.
        """
        missing = set(paths)
        for name, node in list(self.nodes.items()):
            of_node = [
                (self.held[path].offers[name], path) for path in missing if name in self.held[path].offers
            ]
            try:
                self._fetch(node, of_node, folder)
            except Exception:  # whatever Ray raises for a node that dies
                self.forget(name)
                continue
            missing -= {path for _, path in of_node}
        if missing:
            raise FileNotFoundError(f"no node that holds {min(missing)} answers")

    def _fetch(self, node: RayNode, wanted: Iterable[tuple[Offer, str]], folder: Path) -> None:
        targets = {offer.path: SafeFolder(folder).split(path) for offer, path in wanted}
        chunks = list(in_chunks([(offer.path, 0, offer.size) for offer, _ in wanted], CHUNK_BYTES))
        answers = node.calls(on_node.send, ((self.where, chunk, True) for chunk in chunks))
        for chunk, answer in zip(chunks, answers, strict=True):
            for path, begin, piece in pieces_of(chunk, answer):
                target, name = targets[path]
                with target.changing(name) as out:
                    out.truncate(begin)
                    out.seek(begin)
                    write_whole(out, piece)

    def _is_known(self, node: RayNode) -> bool:
        return node.name in self.nodes or node.name in self.absent

    def _look(self, node: RayNode) -> list[Offer]:
        """Return what a node holds; [] if it fails."""
        try:
            [listing] = node.calls(on_node.look, [(self.where, self._only)])
        except Exception as error:  # whatever Ray raises for a node that dies
            self.forget(node.name)
            self.absent[node.name] = str(error).strip().partition("\n")[0]
            return []
        return [Offer(node.name, **entry) for entry in listing["files"] if is_inside(entry["path"])]

    def _hash_there(self, name: str, path: str, size: int) -> str:
        if name not in self.nodes:
            return ""
        try:
            [[digest]] = self.nodes[name].calls(on_node.hashes, [(self.where, [(path, size)])])
        except Exception:  # as above
            self.forget(name)
            return ""
        return str(digest)
