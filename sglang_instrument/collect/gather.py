"""Bring what is new on the nodes into a folder, and compare sizes and hashes at the end."""

from __future__ import annotations

import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from sglang_instrument.collect import on_node
from sglang_instrument.collect.collected import PRUNED, Collected, CollectedFolder
from sglang_instrument.collect.compressed import drop_replaced
from sglang_instrument.collect.nodes import Node, NodeSource
from sglang_instrument.collect.outcome import CollectOutcome, Missing, NodeReport
from sglang_instrument.collect.same_files import Offer, match

CHUNK_BYTES: Final = 16 * 2**20  # raw, a call; two a node are under way
_HASHED_BYTES: Final = 2**30  # a call
_MOST_NODES: Final = 32  # at once: bounds the memory of the caller
_SAVE_EVERY_SEC: Final = 5.0
_MOST_PASSES: Final = 5

#: (bytes brought so far, bytes to bring)
Progress = Callable[[int, int], None]


@dataclass
class _NodeFiles:
    """What one node has to send: files, and how far."""

    node: Node
    report: NodeReport
    files: list[tuple[Collected, Offer]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(offer.whole - _begin(file, offer) for file, offer in self.files)


def gather(
    run: str | Callable[[Node], str], source: NodeSource, folder: CollectedFolder, progress: Progress
) -> CollectOutcome:
    """Bring what is new, from all nodes at once, until no node joins or fails meanwhile.

    Args:
        run: The run's folder on the nodes, or a function that returns it for a node.
        source: Reaches the nodes.
        folder: Where the files go.
        progress: Called with the bytes brought so far and those to bring.
    """
    return _Gathering(run, source, folder, progress).run()


class _Gathering:
    def __init__(
        self,
        run: str | Callable[[Node], str],
        source: NodeSource,
        folder: CollectedFolder,
        progress: Progress,
    ) -> None:
        self._run = run
        self._source = source
        self._folder = folder
        self._progress = progress
        self._outcome = CollectOutcome()
        self._nodes: dict[str, Node] = {}  # by name: those that answer
        self._lock = threading.Lock()
        self._done = self._total = 0
        self._saved_at = time.monotonic()
        self._interrupted = False
        self._offered: set[str] = set()  # paths here

    def run(self) -> CollectOutcome:
        for file in self._folder.files:
            file.held = self._folder.held_bytes(file)
        try:
            for _ in range(_MOST_PASSES):
                reachable = self._source.nodes()
                before = len(self._failed())
                asked = [node for node in reachable.values() if node.name not in self._failed()]
                is_whole = self._pass(asked)
                late = self._source.nodes().keys() - reachable.keys()
                if is_whole and not late and len(self._failed()) == before:
                    break
            drop_replaced(self._folder, self._offered)
        finally:
            self._folder.save()
        for name, error in self._source.lost().items():
            self._report(name).error = self._report(name).error or error
        for file in self._folder.files:  # begun by an earlier command, and its node is gone
            if not file.sha256 and file.target not in self._outcome.missing:
                self._outcome.missing[file.target] = Missing(file.target, file.node, file.held, None)
        self._outcome.files = self._folder.files
        self._outcome.pruned = sum(map(self._folder.is_pruned, self._folder.files))
        return self._outcome

    def _pass(self, nodes: Sequence[Node]) -> bool:
        """Bring what is new from these nodes; return whether all that they offered is here."""
        with ThreadPoolExecutor(_MOST_NODES) as threads:
            offers = [offer for node_offers in threads.map(self._look, nodes) for offer in node_offers]
            self._nodes = {node.name: node for node in nodes if node.name not in self._failed()}
            offered = match(self._folder.files, offers, self._hash_there, self._hash_here)
            self._bring_grown_anew(offered)
            self._offered |= {file.target for file, _ in offered}
            jobs = self._share_out(offered)
            self._total += sum(job.bytes for job in jobs)
            try:
                list(threads.map(self._bring, jobs))
            except BaseException:  # Ctrl-C: the threads end after the piece that is under way
                self._interrupted = True
                raise
        return self._note_missing(offered)

    def _bring_grown_anew(self, offered: Sequence[tuple[Collected, list[Offer]]]) -> None:
        """Skip pruned files, unless the node's copy grew: then bring the whole file."""
        for file, offers in offered:
            if self._folder.is_pruned(file) and any(offer.whole > file.held for offer in offers):
                file.held = 0

    def _look(self, node: Node) -> list[Offer]:
        """Return what a node holds; [] if it fails."""
        report = self._report(node.name)
        try:
            [contents] = node.calls(on_node.look, [(self._where(node),)])
            offers = [Offer(node.name, **file) for file in contents["files"] if is_inside(file["path"])]
        except Exception as error:  # whatever Ray raises for a node
            report.error = _in_words(error)
            return []
        report.files = len(offers)
        report.unfinished_bytes = sum(offer.size - offer.whole for offer in offers)
        # Without a whole first line it is not known yet which file this is.
        return [offer for offer in offers if offer.whole or not offer.is_log]

    def _share_out(self, offered: Sequence[tuple[Collected, list[Offer]]]) -> list[_NodeFiles]:
        """Decide which node sends which files; nodes of a shared disk share its files out."""
        jobs = {name: _NodeFiles(node, self._report(name)) for name, node in self._nodes.items()}
        load: dict[str, int] = defaultdict(int)
        for file, offers in offered:
            longest = max(offer.whole for offer in offers)
            able = [offer for offer in offers if offer.whole == longest and offer.node in jobs]
            if able and _is_new(file, able[0]):
                chosen = min(able, key=lambda offer: load[offer.node])
                load[chosen.node] += chosen.whole - _begin(file, chosen)
                jobs[chosen.node].files.append((file, chosen))
        return [job for job in jobs.values() if job.files]

    def _bring(self, job: _NodeFiles) -> None:
        """Bring the new bytes of one node's files, then compare their hashes."""
        try:
            self._fetch(job)
            if not self._interrupted:
                self._compare(job)
        except Exception as error:  # whatever Ray raises for a node that dies; a full disk here
            job.report.error = _in_words(error)

    def _fetch(self, job: _NodeFiles) -> None:
        ends = [(offer.path, _begin(file, offer), offer.whole) for file, offer in job.files]
        files = {offer.path: file for file, offer in job.files}
        where = self._where(job.node)
        chunks = list(in_chunks(ends, CHUNK_BYTES))
        calls = ((where, chunk, job.node.is_far) for chunk in chunks)
        for chunk, answer in zip(chunks, job.node.calls(on_node.send, calls), strict=True):
            if self._interrupted:
                return
            _, lengths, content = answer
            for path, begin, piece in pieces_of(chunk, answer):
                self._folder.append(files[path], begin, piece)
                files[path].node = job.node.name
            job.report.new_bytes += sum(lengths)
            job.report.sent_bytes += len(content) if job.node.is_far else 0
            self._count(sum(lengths))

    def _compare(self, job: _NodeFiles) -> None:
        """Compare the hashes here with those on the node; the next pass brings anew what differs."""
        where = self._where(job.node)
        by_path = {offer.path: (file, offer) for file, offer in job.files}
        # A byte more than expected of what is written anew as a whole: it may be longer by now.
        sizes = [(offer.path, 0, offer.whole + (not file.is_log)) for file, offer in job.files]
        groups = [
            [(path, end) for path, _, end in chunk] for chunk in in_chunks(sizes, _HASHED_BYTES, whole=True)
        ]
        answers = job.node.calls(on_node.hashes, ((where, group) for group in groups))
        for group, node_hashes in zip(groups, answers, strict=True):
            for (path, size), expected in zip(group, node_hashes, strict=True):
                file, offer = by_path[path]
                if file.held == offer.whole and self._folder.hash(file, size) == expected:
                    file.sha256, file.mtime_ns = expected, offer.mtime_ns
                    file.inode = offer.inode
                else:
                    file.held, file.sha256 = 0, ""

    def _note_missing(self, offered: Sequence[tuple[Collected, list[Offer]]]) -> bool:
        """Note what is not whole here; return whether all of these files are."""
        is_whole = True
        for file, offers in offered:
            longest = max(offers, key=lambda offer: offer.whole)
            if file.held < longest.whole or not file.sha256:
                is_whole = False
                missing = Missing(file.target, longest.node, file.held, longest.whole)
                self._outcome.missing[file.target] = missing
            else:
                self._outcome.missing.pop(file.target, None)
        return is_whole

    def _hash_there(self, name: str, path: str, size: int) -> str:
        node = self._nodes.get(name)
        if node is None:
            return ""
        try:
            [[digest]] = node.calls(on_node.hashes, [(self._where(node), [(path, size)])])
        except Exception as error:
            self._report(name).error = _in_words(error)
            del self._nodes[name]
            return ""
        return str(digest)

    def _hash_here(self, file: Collected, size: int) -> str:
        if size == file.held and self._folder.is_pruned(file):
            return file.sha256
        return self._folder.hash(file, size)

    def _where(self, node: Node) -> str:
        return self._run if isinstance(self._run, str) else self._run(node)

    def _count(self, brought: int) -> None:
        with self._lock:
            self._done += brought
            self._progress(self._done, self._total)
            if time.monotonic() - self._saved_at > _SAVE_EVERY_SEC:
                self._folder.save()
                self._saved_at = time.monotonic()

    def _report(self, name: str) -> NodeReport:
        return self._outcome.nodes.setdefault(name, NodeReport(name))

    def _failed(self) -> set[str]:
        return {name for name, report in self._outcome.nodes.items() if report.error is not None}


def in_chunks(
    parts: Sequence[tuple[str, int, int]], most_bytes: int, whole: bool = False
) -> Iterator[list[tuple[str, int, int]]]:
    """Yield the parts of files, (path, begin, end), in lists of at most `most_bytes`.

    A longer part is cut, or is alone in its list if it must stay `whole`.
    """
    chunk: list[tuple[str, int, int]] = []
    room = most_bytes
    for path, begin, end in parts:
        position = begin
        while position < end or position == begin:  # an empty file is a part, too
            if chunk and (room <= 0 or (whole and end - begin > room)):
                yield chunk
                chunk, room = [], most_bytes
            taken = end - position if whole else min(end - position, room)
            chunk.append((path, position, position + taken))
            room -= taken
            position += taken
            if position == end:
                break
    if chunk:
        yield chunk


def is_inside(path: str) -> bool:
    """Return whether a path stays in the run's folder, and out of hidden ones but that of `prune`."""
    parts = path.removeprefix(f"{PRUNED}/").split("/")
    return all(part and not part.startswith(".") for part in parts)


def _begin(file: Collected, offer: Offer) -> int:
    """Return from where a file is needed: logs grow at their end, other files are written anew."""
    return file.held if file.is_log and file.held <= offer.whole else 0


def _is_new(file: Collected, offer: Offer) -> bool:
    if file.is_log:
        return offer.whole > file.held or (offer.whole == file.held and not file.sha256)
    return (file.held, file.mtime_ns) != (offer.whole, offer.mtime_ns) or not file.sha256


def pieces_of(
    chunk: Sequence[tuple[str, int, int]], answer: tuple[str, list[int], bytes]
) -> Iterator[tuple[str, int, memoryview]]:
    """Yield the parts of files that `on_node.send` returned for a chunk: path, begin, bytes."""
    codec, lengths, content = answer
    left = memoryview(_expanded(codec, content, sum(lengths)))
    for (path, begin, _), length in zip(chunk, lengths, strict=True):
        yield path, begin, left[:length]
        left = left[length:]


def _expanded(codec: str, content: bytes, size: int) -> bytes:
    if codec == "zstd":
        import zstandard

        return zstandard.ZstdDecompressor().decompress(content, max_output_size=size)
    return zlib.decompress(content) if codec == "zlib" else content


def _in_words(error: Exception) -> str:
    """Return the kind of an error and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".removesuffix(": ")
