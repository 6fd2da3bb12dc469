"""Read the files of a run in Ray tasks on the nodes that hold them; only tables travel."""

import contextlib
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from sglang_instrument import __version__
from sglang_instrument.analysis.executors.batches import in_order, join_results, split_files, weight
from sglang_instrument.analysis.executors.executor import BatchResult, Job, Progress
from sglang_instrument.analysis.executors.files_on_nodes import FilesOnNodes, cluster_at, where_on_nodes
from sglang_instrument.analysis.executors.local import LocalExecutor
from sglang_instrument.analysis.executors.ray_tasks import Packed, combine, read_batch, unpack
from sglang_instrument.analysis.executors.worker_processes import SETTINGS
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.reading.folders import logs_among, others_among
from sglang_instrument.collect import on_node
from sglang_instrument.collect.by_ray import RayNode, RayNodes
from sglang_instrument.collect.collected import PRUNED
from sglang_instrument.errors import InstrumentError, LogError
from sglang_instrument.safe_files.folder import SafeFolder

#: The folders that an executor copies to this machine whole, if they are among those it reads.
SMALL: Final = ("processes", PRUNED)
_SETTINGS: Final = {name: value for name, value in SETTINGS.items() if name != "PYTHONSAFEPATH"}
_MOST_NAMED: Final = 4
_FAN_IN: Final = 16  # results that a task puts together
_MOST_NODES: Final = 128  # threads that wait, each for a node
_LOOK_UP_SEC: Final = 1.0  # how soon a thread sees that the caller was interrupted
_RETRIES: Final = 2  # of a task whose worker was killed, for lack of memory for example


class RayExecutor:
    """The executor of a run whose files lie on the nodes of a cluster, on disks of their own or a shared one.

    Args:
        folder: The run's folder on the nodes; they expand variables such as $TMPDIR.
        on: "ray" for the cluster of this machine, or its address.
        only: Names of folders in it, as if there were no others; None stands for all.

    Raises:
        InstrumentError: Ray is not installed, there is no such cluster, or its nodes lack this package.
        LogError: No node has a file in the folder.
    """

    is_far = True

    def __init__(self, folder: Path, on: str, only: Sequence[str] | None = None) -> None:
        self.folder = folder
        where = where_on_nodes(folder)
        self._ray = cluster_at(on)
        self._source = RayNodes(self._ray)
        self._files = FilesOnNodes(where, self._source, only)
        self.lost: dict[str, list[str]] = {name: [] for name in self._files.absent}
        if only is None and not self._files.held:
            raise LogError(f"no node has a file in {folder}; give the run's folder as the nodes name it")
        self._demand_package()
        self.home = _home(where)
        if only is None or set(SMALL) <= set(only):
            self._bring_small_files()
        self._interrupted = False
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    @property
    def cpus(self) -> int:
        """How many CPUs Ray may lend on the nodes that answer: at least one."""
        return max(1, int(sum(node.cpus for node in self._files.nodes.values())))

    def list_files(self) -> list[File]:
        """Return the log files, each once, in the order of their steps."""
        return [
            File(path, held.longest.size, held.longest.mtime_ns)
            for path in logs_among(self._files.held)
            for held in [self._files.held[path]]
        ]

    def list_others(self) -> list[str]:
        """Return what lies in the folders besides logs, in order; folders end with a slash."""
        return others_among(self._files.held)

    def read(self, files: Sequence[File], job: Job, progress: Progress | None = None) -> BatchResult:
        """Return the files as read and the job's tables, sorted by `source`.

        What a node that dies shared with others is read again there. What only it held is returned as files
        that could not be read. What `prune` kept of deleted files lies on this machine, and is read here.
        """
        counter = _Counter(len(files), progress)
        parts: list[BatchResult] = []
        left = [file for file in files if file.part is None]
        if deleted := [file for file in files if file.part is not None]:
            parts.append(LocalExecutor(self.home).read(deleted, job))
            counter.add(len(deleted))
        while left:
            shares, gone = self._share_out(left)
            parts += [([self._unreadable(file)], {}) for file in gone]
            left = []
            for of_share, result in self._read_at_once(shares, job, counter):
                if result is None:
                    left += of_share
                else:
                    parts.append(result)
        return in_order(files, join_results(parts))

    def bring(self, files: Sequence[File]) -> Path:
        """Return a folder of this machine with these log files; those that are missing in it are brought."""
        self._scratch = self._scratch or tempfile.TemporaryDirectory()
        folder = Path(self._scratch.name)
        missing = [file.path for file in files if not (folder / file.path).exists() and file.part is None]
        with contextlib.suppress(OSError):  # the reader says which file is missing
            self._files.bring(missing, folder)
        return folder

    def call(
        self, number: int, stopped: threading.Event, function: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Return what a function of this package returns on a node that holds files of the run.

        It takes no CPU, so that it can wait for tasks that do. None if no such node answers.

        Args:
            number: Calls with different numbers go to different nodes.
            stopped: Set when the caller was interrupted.
            function: The function.
            *arguments: Its arguments.

        Raises:
            LogError: The function raised an error.
        """
        holders = sorted({name for held in self._files.held.values() for name in held.offers})
        for turn in range(len(holders)):
            name = holders[(number + turn) % len(holders)]
            if name not in self._files.nodes:
                continue
            options = {"num_cpus": 0, "runtime_env": {"env_vars": _SETTINGS}, "max_retries": _RETRIES}
            remote = self._ray.remote(**options, **self._files.nodes[name].pinned)(function)
            try:
                return self._ray.get(self._wait_for(remote.remote(*arguments), stopped))
            except self._ray.exceptions.RayError as error:
                self._demand_death(name, error)
        return None

    def _wait_for(self, task: Any, stopped: threading.Event) -> Any:
        """Return a task when it has ended; raise an error if the caller was interrupted meanwhile."""
        while not self._ray.wait([task], timeout=_LOOK_UP_SEC)[0]:
            if stopped.is_set():
                raise InterruptedError
        return task

    def _demand_death(self, name: str, error: Exception) -> None:
        """Forget a node that failed; raise an error if it was our code that failed there."""
        cause = getattr(error, "cause", None)
        if isinstance(cause, Exception) and not isinstance(cause, self._ray.exceptions.RayError):
            raise LogError(f"node {name}: {cause}") from error
        self._files.forget(name)
        self.lost.setdefault(name, [])

    def _share_out(self, files: Sequence[File]) -> tuple[dict[str, list[File]], list[File]]:
        """Return the files that each node shall read, and those that no node alive holds."""
        shares: dict[str, list[File]] = {}
        gone = []
        load = dict.fromkeys(self._files.nodes, 0.0)
        for file in files:
            able = [name for name in self._files.held[file.path].offers if name in load]
            able = [name for name in able if self._files.nodes[name].cpus >= 1] or able
            if not able:
                gone.append(file)
                continue
            chosen = min(able, key=lambda name: load[name])
            load[chosen] += weight(file) / _processes(self._files.nodes[chosen])
            shares.setdefault(chosen, []).append(file)
        return shares, gone

    def _read_at_once(
        self, shares: dict[str, list[File]], job: Job, counter: "_Counter"
    ) -> list[tuple[list[File], BatchResult | None]]:
        """Return what each node makes of its share: None if it fails."""
        with ThreadPoolExecutor(_MOST_NODES) as threads:
            try:
                work = shares.items()
                return list(threads.map(lambda share: self._read_on(share[0], share[1], job, counter), work))
            except BaseException:  # Ctrl-C: the threads end soon
                self._interrupted = True
                raise

    def _read_on(
        self, name: str, files: list[File], job: Job, counter: "_Counter"
    ) -> tuple[list[File], BatchResult | None]:
        """Return these files, and what one node makes of them: None if the node fails."""
        try:
            return files, unpack(self._reduced(name, files, job, counter))
        except self._ray.exceptions.RayError as error:
            self._demand_death(name, error)
            return files, None

    def _reduced(self, name: str, files: list[File], job: Job, counter: "_Counter") -> Packed:
        """Read files on a node, and put the results together there, in a tree."""
        node = self._files.nodes[name]
        options = {
            **node.pinned,
            "num_cpus": 1 if node.cpus >= 1 else 0,
            "max_retries": _RETRIES,
            "runtime_env": {"env_vars": _SETTINGS},
        }
        read = self._ray.remote(**options)(read_batch)
        together = self._ray.remote(**options)(combine)
        names = {file.path: self._files.held[file.path].offers[name].path for file in files}
        batches = split_files(files, _processes(node))
        # Ray would run all tasks that take no CPU at once.
        groups = [batches] if node.cpus >= 1 else [[batch] for batch in batches]
        parts: list[Any] = []
        counted = 0
        try:
            for group in groups:
                sizes = {
                    read.remote(self._files.where, batch, _of(names, batch), job): len(batch)
                    for batch in group
                }
                parts += sizes
                for done in self._finished(list(sizes)):
                    counter.add(sizes[done])
                    counted += sizes[done]
            while len(parts) > 1:
                parts = [
                    together.remote(*parts[begin : begin + _FAN_IN])
                    for begin in range(0, len(parts), _FAN_IN)
                ]
            list(self._finished(parts))
            packed: Packed = self._ray.get(parts[0])
        except self._ray.exceptions.RayError:
            counter.add(-counted)
            raise
        return packed

    def _finished(self, waiting: list[Any]) -> Iterator[Any]:
        """Yield tasks as they end; raise an error if the caller was interrupted meanwhile."""
        while waiting:
            if self._interrupted:
                raise InterruptedError
            ended, waiting = self._ray.wait(waiting, timeout=_LOOK_UP_SEC)
            yield from ended

    def _unreadable(self, file: File) -> File:
        """Return a file that only nodes held which do not answer."""
        for name in self._files.held[file.path].offers:
            paths = self.lost.setdefault(name, [])
            if file.path not in paths:
                paths.append(file.path)
        why = f"node {', '.join(self._files.held[file.path].offers)} died"
        return File(file.path, file.size, file.mtime_ns, unreadable=why, inode=file.inode)

    def _demand_package(self) -> None:
        """Raise an error if a node that holds files cannot read them."""
        wrong = []
        holders = {name for held in self._files.held.values() for name in held.offers}
        for name in sorted(holders & self._files.nodes.keys()):
            try:
                [versions] = self._files.nodes[name].calls(on_node.versions, [()])
            except self._ray.exceptions.RayError:  # it has died meanwhile
                self._files.forget(name)
                continue
            missing = [package for package, version in versions.items() if version is None]
            if missing:
                wrong.append(f"{name} lacks {', '.join(missing)}")
            elif versions["sglang_instrument"] != __version__:
                wrong.append(f"{name} has sglang_instrument {versions['sglang_instrument']}")
        if wrong:
            more = f"; and {len(wrong) - _MOST_NAMED} more nodes" if len(wrong) > _MOST_NAMED else ""
            raise InstrumentError(
                f"--ray: {'; '.join(wrong[:_MOST_NAMED])}{more}; install sglang-instrument[analysis]"
                f" {__version__} in the environment of the nodes' Ray, or use `collect`, which does without"
            )

    def _bring_small_files(self) -> None:
        """Keep in `home` what it needs of the nodes: descriptions of processes, and what `prune` kept."""
        held = self._files.held
        described = [path for path in held if path.startswith("processes/") and path.endswith(".json")]
        of_prune = [path for path in held if path.startswith(f"{PRUNED}/")]
        self._forget_all_but({*described, *of_prune})
        for path in of_prune:  # a folder that cannot be brought as a whole is reported as unreadable
            SafeFolder(self.home).split(path)[0].make()
        missing = [path for path in of_prune if not self._is_here(path)]
        with contextlib.suppress(OSError):  # as if they were missing
            self._files.bring([*described, *missing], self.home)

    def _forget_all_but(self, now: set[str]) -> None:
        """Delete in `home` what the nodes do not hold any more."""
        home = SafeFolder(self.home)
        for old in (*self.home.glob("processes/**/*.json"), *self.home.glob(f"{PRUNED}/*/*")):
            path = old.relative_to(self.home).as_posix()
            if path not in now:
                folder, name = home.split(path)
                folder.delete_those(name.__eq__)
        for name in (home / PRUNED).names():
            (home / PRUNED).delete_folder(name)  # unless it still has files

    def _is_here(self, path: str) -> bool:
        """Return whether a file of `prune`, which never changes, was brought as a whole before."""
        here = self.home / path
        return here.is_file() and here.stat().st_size == self._files.held[path].longest.size


class _Counter:
    """Counts files as threads read them, for a progress line."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._done = 0
        self._tell = progress or (lambda done, total: None)
        self._lock = threading.Lock()
        self.add(0)

    def add(self, files: int) -> None:
        """Count files that were read; fewer than none that were lost again."""
        with self._lock:
            self._done += files
            self._tell(self._done, self._total)


def _of(names: dict[str, str], batch: Sequence[File]) -> dict[str, str]:
    """Return the names on the node of files that have another one in the run."""
    return {file.path: names[file.path] for file in batch if names[file.path] != file.path}


def _processes(node: RayNode) -> int:
    return max(1, int(node.cpus))


def _home(where: str) -> Path:
    """Return a folder of this user for what belongs to a run on nodes; a temporary one if there is none."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = root / "sglang-instrument" / f"ray-{hashlib.sha256(os.fsencode(where)).hexdigest()[:16]}"
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp())
    return home
