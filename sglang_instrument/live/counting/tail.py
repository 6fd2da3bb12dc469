"""Read what processes append to the files of a run: whole lines, each once, of the newest folders first.

Steps follow one another, so only the few folders in which something happened last are watched closely. The
others are looked at in turn, because a resumed run appends to files of steps that it does again.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sglang_instrument.analysis.reading.folders import Place, is_part, place_of
from sglang_instrument.regular_files import open_regular
from sglang_instrument.schema import LOG_OPENED

_WINDOW: Final = 8  # folders of steps that are watched; asynchronous trainers overlap a few steps
_FROM_BEGIN: Final = 2  # of them at the start, the newest, are read whole; of the others what is added
_EARLIER: Final = 2  # before them: read whole, too, if they are small, for they tell what is usual
_EARLIER_BYTES: Final = 16 * 2**20
_PIECE_BYTES: Final = 2**20  # read of one file before the next one has its turn
_ROUND_BYTES: Final = 4 * 2**20  # read in one round
_MOST_FILES: Final = 50_000  # of folders that were watched: how far they were read
_LONGEST_LINE: Final = 64 * 2**20  # as for other readers: more is no record
_NEAR_END_BYTES: Final = 4 * 2**20
_ENGINE: Final = "engine"  # the folder of its processes, which know no step
_ENGINE_BYTES: Final = 256 * 2**10  # of each of their files, at the start: where the open calls are
_MOST_GONE: Final = 10_000  # files that vanished
_LIST_EVERY_SEC: Final = 1.0
_OTHERS_AT_ONCE: Final = 500  # folders outside the window, of which one file is looked at per listing
_PATIENCE_SEC: Final = (0.25, 1.0)  # until the next look at a file; longer for a quiet one


@dataclass(slots=True)
class TailedFile:
    """One log file and how far it is read.

    `inode`, `size` and `mtime` are those of the last look, `mtime` in seconds; `resets` counts how often the
    file was found cut or replaced, `reads` how often something was read. `was_there` says that the file is
    older than we are, `due` when to look again, `read_whole` when nothing was left (both monotonic). `owner`
    belongs to the consumer of the lines.
    """

    path: str
    place: Place
    offset: int = 0
    inode: int = 0
    size: int = 0
    mtime: float = 0.0
    resets: int = 0
    reads: int = 0
    was_there: bool = False
    owner: object = None
    due: float = 0.0
    patience: float = 0.0
    read_whole: float = 0.0


@dataclass(slots=True)
class _Folder:
    """A folder of logs; it `changed` when a file in it did, as far as known. `sample` is one of its files."""

    path: str
    changed: float
    modified: float  # its own modification time: a file was added
    listed: float = 0.0  # that time at the last listing
    sample: str | None = None
    is_watched: bool = False
    files: dict[str, TailedFile] | None = None  # None: never watched, or long ago


@dataclass
class Tail:
    """Follows the files below a run's folder.

    Attributes:
        folder: The run's folder.
        doing: What is being read, and since when (monotonic): a disk that hangs shows here.
        more: Whether the last round left something unread.
        failures: Files that cannot be read, with the reason.
        clock: Monotonic seconds.
    """

    folder: Path
    doing: tuple[str, float] | None = None
    more: bool = False
    failures: dict[str, str] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    _folders: dict[str, _Folder] = field(default_factory=dict)
    _gone: dict[str, TailedFile] = field(default_factory=dict)  # file servers lose files for a moment
    _next_listing: float = 0.0
    _turn: int = 0  # whose turn it is of the folders outside the window
    _next_file: int = 0

    def read(self) -> Iterator[tuple[TailedFile, bytes]]:
        """Yield whole lines that were added, at most some megabytes in all: then call it again.

        Raises:
            OSError: The run's folder cannot be read.
        """
        now = self.clock()
        if now >= self._next_listing:
            self._list()
            self._next_listing = now + _LIST_EVERY_SEC
        files = self.files()
        self._next_file %= max(1, len(files))
        left, self.more = _ROUND_BYTES, False
        for offset, file in enumerate((*files[self._next_file :], *files[: self._next_file])):
            if file.due > now:
                continue
            if left <= 0:
                self._next_file, self.more = self._next_file + offset, True
                break
            for piece in self._added(file, now):
                left -= len(piece)
                yield file, piece
        self.doing = None

    def hurry(self) -> None:
        """Look at everything in the next round, also at what is usually looked at later."""
        self._next_listing = 0.0
        for file in self.files():
            file.due = 0.0

    def files(self) -> list[TailedFile]:
        """Return the watched files, the newest folder first."""
        watched = sorted(self._watched(), key=lambda folder: -folder.changed)
        return [file for folder in watched for file in (folder.files or {}).values()]

    def _watched(self) -> list[_Folder]:
        return [folder for folder in self._folders.values() if folder.is_watched]

    def behind_sec(self) -> float:
        """Return for how long the file that waits longest for a look has waited."""
        now = self.clock()
        return max((now - file.read_whole for file in self.files() if file.due <= now), default=0.0)

    def _added(self, file: TailedFile, now: float) -> Iterator[bytes]:
        """Yield what was added to a file, at most one piece; note when to look again."""
        self.doing = (file.path, self.clock())
        try:
            stat = os.stat(file.path)  # noqa: PTH116 - a thousand files a second
            if stat.st_ino != file.inode or stat.st_size < file.offset:
                file.resets += bool(file.inode)
                file.inode, file.offset = stat.st_ino, 0
            file.size, file.mtime = stat.st_size, stat.st_mtime
            piece = self._piece(file) if file.size > file.offset else b""
        except OSError as error:
            self._forget(file) if error.errno == errno.ENOENT else self._failed(file, error, now)
            return
        self.failures.pop(file.path, None)
        if piece and file.offset < file.size:
            file.due, self.more = 0.0, True
        else:
            least, most = _PATIENCE_SEC
            file.patience = least if piece else min(most, max(least, file.patience * 2))
            file.due, file.read_whole = now + file.patience, now
        if piece:
            yield piece

    def _piece(self, file: TailedFile) -> bytes:
        """Return the next whole lines; b"" if the last one is not complete yet."""
        wanted = _PIECE_BYTES
        with open_regular(file.path) as stream:
            stream.seek(file.offset)
            piece = stream.read(wanted)
            while b"\n" not in piece and len(piece) == wanted < _LONGEST_LINE:
                wanted *= 4
                piece += stream.read(wanted - len(piece))
        end = piece.rfind(b"\n") + 1
        if not end and len(piece) >= _LONGEST_LINE:
            end = len(piece)  # no record: the part that follows is none either
        file.offset += end
        return piece[:end]

    def _failed(self, file: TailedFile, error: OSError, now: float) -> None:
        self.failures[file.path] = error.strerror or str(error)
        file.patience, file.due = _PATIENCE_SEC[1], now + _PATIENCE_SEC[1]

    def _forget(self, file: TailedFile) -> None:
        self.failures.pop(file.path, None)
        folder = self._folders.get(file.place.folder)
        if folder is not None and folder.files is not None:
            folder.files.pop(file.path, None)
        self._gone[file.path] = file
        while len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]

    def _list(self) -> None:
        """Find folders and files that are new or gone, and choose which folders are watched."""
        self.doing = (str(self.folder), self.clock())
        is_start = not self._folders
        modified_times = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if is_part(entry.name) and entry.name != "processes" and entry.is_dir():
                    modified_times[entry.name] = entry.stat().st_mtime
        for name in self._folders.keys() - modified_times.keys():
            for file in list((self._folders[name].files or {}).values()):
                self._forget(file)
        self._folders = {name: folder for name, folder in self._folders.items() if name in modified_times}
        for name, modified in modified_times.items():
            folder = self._folders.get(name)
            if folder is None:
                folder = self._folders[name] = _Folder(str(self.folder / name), modified, modified)
                if not is_start:
                    folder.files = {}  # all that comes into it is new
            folder.modified, folder.changed = modified, max(folder.changed, modified)
        self._sample(everything=is_start)
        self._watch_newest(is_start)

    def _sample(self, everything: bool) -> None:
        """Look at one file of the folders that are not watched: of all of them, or of the next in turn."""
        others = [folder for folder in self._folders.values() if not folder.is_watched]
        if not everything and len(others) > _OTHERS_AT_ONCE:
            self._turn %= len(others)
            others = (others + others)[self._turn : self._turn + _OTHERS_AT_ONCE]
            self._turn += _OTHERS_AT_ONCE
        for folder in others:
            try:
                folder.sample = folder.sample or next(iter(_logs_in(folder.path)), None)
                if folder.sample is not None:
                    folder.changed = max(folder.changed, os.stat(folder.sample).st_mtime)  # noqa: PTH116
            except OSError:  # gone again
                folder.sample = None

    def _watch_newest(self, is_start: bool) -> None:
        steps = sorted(self._folders.keys() - {_ENGINE}, key=lambda name: -self._folders[name].changed)
        left_bytes = _EARLIER_BYTES
        for rank, name in enumerate(steps):
            folder = self._folders[name]
            folder.is_watched = rank < _WINDOW
            if is_start and _FROM_BEGIN <= rank < _FROM_BEGIN + _EARLIER:
                left_bytes -= _size_of(folder.path)
            from_begin = _FROM_BEGIN + (_EARLIER if left_bytes >= 0 else 0)
            if folder.is_watched and (rank < _FROM_BEGIN or folder.listed != folder.modified):
                self._list_files(folder, is_start, whole=rank < from_begin)
        if _ENGINE in self._folders:
            self._folders[_ENGINE].is_watched = True
            self._list_files(self._folders[_ENGINE], is_start, whole=False)
        self._forget_oldest(steps[_WINDOW:])

    def _list_files(self, folder: _Folder, is_start: bool, whole: bool) -> None:
        """Note the new files of a folder, and from where to read them.

        Of a folder that was there before us, and is new to us, only what is added is of interest.
        """
        known, first = folder.files or {}, folder.files is None
        try:
            paths = _logs_in(folder.path)
        except OSError:  # gone again
            return
        for path in paths:
            if path not in known and path in self._gone:  # back again; if it is another one, its inode tells
                known[path] = self._gone.pop(path)
            elif path not in known and (place := place_of(Path(path))) is not None:
                known[path] = TailedFile(path, place, was_there=first, read_whole=self.clock())
                if first and not (is_start and whole):
                    _skip(known[path], to_last_opening=not is_start)
        folder.files, folder.listed = known, folder.modified
        folder.changed = max([folder.changed, *(file.mtime for file in known.values())])

    def _forget_oldest(self, unwatched: list[str]) -> None:
        """Bound the memory: of what was watched long ago we need not know how far it was read."""
        count = sum(len(folder.files or ()) for folder in self._folders.values())
        for name in reversed(unwatched):
            if count <= _MOST_FILES:
                return
            count -= len(self._folders[name].files or ())
            self._folders[name].files = None


def _logs_in(folder: str) -> list[str]:
    """Return the log files in a folder; compressed ones are complete, so that nothing is added to them."""
    with os.scandir(folder) as entries:
        return sorted(entry.path for entry in entries if entry.name.endswith(".jsonl"))


def _size_of(folder: str) -> int:
    """Return the bytes of the log files in a folder; 0 if it is gone."""
    try:
        return sum(os.stat(path).st_size for path in _logs_in(folder))  # noqa: PTH116
    except OSError:
        return 0


def _skip(file: TailedFile, to_last_opening: bool) -> None:
    """Skip what is in a file, or what is before the last process opened it; of the engine, all but the end.

    The last line may be incomplete: what is added to it is then no record, and counts as torn.
    """
    try:
        stat = os.stat(file.path)  # noqa: PTH116
        file.inode, file.size, file.mtime = stat.st_ino, stat.st_size, stat.st_mtime
        if file.place.folder == _ENGINE:
            file.offset = _last_lines(file)
        else:
            file.offset = _last_opening(file) if to_last_opening else file.size
    except OSError:  # gone again
        return


def _last_lines(file: TailedFile) -> int:
    """Return where a file's last lines begin; 0 if it is short."""
    if file.size <= _ENGINE_BYTES:
        return 0
    with open_regular(file.path) as stream:
        stream.seek(file.size - _ENGINE_BYTES)
        skipped = stream.readline(_ENGINE_BYTES)
    return file.size - _ENGINE_BYTES + len(skipped)


def _last_opening(file: TailedFile) -> int:
    """Return where the last header begins; the end of the file if there is none near it."""
    with open_regular(file.path) as stream:
        begin = max(0, file.size - _NEAR_END_BYTES)
        stream.seek(begin)
        piece = stream.read(_NEAR_END_BYTES)
    header = piece.rfind(b'"event":"%s"' % LOG_OPENED.encode())
    return file.size if header < 0 else begin + piece.rfind(b"\n", 0, header) + 1
