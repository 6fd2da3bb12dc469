"""Write a run to object storage as its steps close, and read it from there, by fsspec.

Each host writes below its own name, `s3://bucket/run/HOST/step_3/worker_0.jsonl.zst`, so that no two hosts
write to one object. A log is written once it is closed; a late record of a closed step writes it anew.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from sglang_instrument.collect import on_node
from sglang_instrument.collect.gather import is_inside
from sglang_instrument.collect.nodes import Node
from sglang_instrument.collect.staging import StagedNode, Staging
from sglang_instrument.config import component
from sglang_instrument.errors import InstrumentError, LogError
from sglang_instrument.extras import install_extra

_STATE: Final = ".uploaded.json"
_TAIL_BYTES: Final = 2**16
_PIECE_BYTES: Final = 2**22
_SILENT_SEC: Final = 600.0  # a killed process closes nothing
_MARK: Final = re.compile(rb'"event": ?"(log_opened|step_closed|log_closed)"')

#: path: its bytes and modification time when it was written to the storage
_Uploaded = dict[str, tuple[int, int]]


def storage(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, and the path in it.

    Raises:
        InstrumentError: fsspec, or its part for this kind of URL, is not installed.
    """
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise InstrumentError(f"{url}: {error}; {install_extra('cloud')}") from None
    except ValueError as error:  # an unknown kind of URL
        raise InstrumentError(f"{url}: {error}") from None
    if hasattr(system, "auto_mkdir"):  # a local or mounted folder: file:///mnt/share/run
        system.auto_mkdir = True
    return system, str(path).rstrip("/")


def upload(run: Path, url: str, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Write what is new of a folder to object storage: closed logs, and other files as they are.

    Returns:
        host, url; written: how many files now; bytes, sent_bytes: of these, before and after compression;
        open: the logs that are still written to, which come next time; left: how many were there already.

    Raises:
        LogError: The folder is missing, the storage refuses, or an object is shorter than what was written.
    """
    with _errors_named(url):
        return _upload(run, url, progress)


def _upload(run: Path, url: str, progress: Callable[[int, int], None]) -> dict[str, Any]:
    contents = on_node.look(str(run))
    if not contents["exists"]:
        raise LogError(f"{run} is no folder; give the experiment's folder, logs/EXPERIMENT")
    system, root = storage(url)
    below = f"{root}/{component(contents['host'])}"
    uploaded = _read_state(system, f"{below}/{_STATE}")
    new = [
        file for file in contents["files"] if uploaded.get(file["path"]) != (file["whole"], file["mtime_ns"])
    ]
    waiting = [file["path"] for file in new if file["is_log"] and not is_closed(run / file["path"])]
    ready = [file for file in new if file["path"] not in set(waiting)]
    sent = 0
    try:
        for number, file in enumerate(ready):
            progress(number, len(ready))
            sent += _write(system, run, below, file)
            uploaded[file["path"]] = file["whole"], file["mtime_ns"]
    finally:
        if ready:
            system.pipe_file(f"{below}/{_STATE}", msgspec.json.encode(uploaded))
    return {
        "host": contents["host"],
        "url": url,
        "written": len(ready),
        "bytes": sum(file["whole"] for file in ready),
        "sent_bytes": sent,
        "left": len(contents["files"]) - len(new),
        "open": sorted(waiting),
    }


@contextmanager
def _errors_named(url: str) -> Iterator[None]:
    """Turn whatever a storage's client raises into an error that names the URL."""
    try:
        yield
    except InstrumentError:
        raise
    except Exception as error:  # each client has errors of its own
        raise LogError(f"{url}: {type(error).__name__}: {error}") from error


def is_closed(path: Path) -> bool:
    """Return whether a log is complete: its last mark says so, or it has not changed for ten minutes."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        marks = _MARK.findall(file.read())
        silent_sec = time.time() - os.fstat(file.fileno()).st_mtime
    return (bool(marks) and marks[-1] != b"log_opened") or silent_sec > _SILENT_SEC


def _write(system: Any, run: Path, below: str, file: dict[str, Any]) -> int:
    """Write one file, a log compressed; return the bytes written, which the storage must have, too."""
    target = f"{below}/{file['path']}"
    size = file["whole"]
    if file["is_log"]:
        target += ".zst"
    with (run / file["path"]).open("rb") as source, system.open(target, "wb") as out:
        if file["is_log"]:
            size = _compress(source, size, out)
        else:
            out.write(source.read(size))
    stored = system.info(target)["size"]
    if stored != size:
        raise LogError(f"{target}: {size:,} bytes were written and {stored:,} are there")
    return int(size)


def _compress(source: Any, size: int, out: Any) -> int:
    """Compress the first bytes of a file, with a checksum that every reader compares; return how many."""
    import zstandard

    with zstandard.ZstdCompressor(level=3, write_checksum=True).stream_writer(out, closefd=False) as writer:
        while size > 0 and (block := source.read(min(on_node.BLOCK, size))):
            writer.write(block)
            size -= len(block)
    return int(writer.tell())


def _read_state(system: Any, path: str) -> _Uploaded:
    try:
        content = system.cat_file(path)
    except FileNotFoundError:
        return {}
    try:
        return msgspec.json.decode(content, type=_Uploaded)
    except msgspec.MsgspecError as error:
        raise LogError(f"{path}: {error}; delete it to write all files again") from None


class BucketNodes:
    """The hosts that wrote a run to object storage.

    Args:
        url: The run, as it was given to `--to`.
        staging: Where their files are put.
    """

    def __init__(self, url: str, staging: Staging) -> None:
        self._url = url
        self._staging = staging
        self._nodes: dict[str, Node] | None = None
        self._errors: dict[str, str] = {}

    def nodes(self) -> dict[str, Node]:
        """Download the new objects, once; return the hosts that wrote them."""
        if self._nodes is None:
            with _errors_named(self._url):
                names = self._download_all()
            if not names:
                raise LogError(f"{self._url} has no run; `collect RUN --to {self._url}` writes one there")
            self._nodes = {name: StagedNode(name) for name in names}
        return self._nodes

    def _download_all(self) -> set[str]:
        """Download what is new; return the hosts that wrote it."""
        system, root = storage(self._url)
        system.invalidate_cache()
        names = set()
        for path, about in sorted(system.find(root, detail=True).items()):
            host, _, relative = path.removeprefix(f"{root}/").partition("/")
            if host == component(host) and is_inside(relative):
                names.add(host)
                self._download(system, path, about, host, relative)
        return names

    def lost(self) -> dict[str, str]:
        """Return by host why an object could not be read."""
        return self._errors

    def _download(self, system: Any, path: str, about: dict[str, Any], host: str, relative: str) -> None:
        """Download an object unless it is here; by a new file, so that a collected one stays as it is."""
        folder, name = self._staging.of(host).split(relative)
        written = about.get("LastModified") or about.get("mtime") or about.get("created") or 0
        written_sec = float(written if isinstance(written, (int, float)) else written.timestamp())
        try:
            here = folder.stat(name)
            if here and (here.st_size, int(here.st_mtime)) == (about["size"], int(written_sec)):
                return
            with folder.writing(name) as new, system.open(path, "rb") as source:
                shutil.copyfileobj(source, new, _PIECE_BYTES)
                new.flush()
                if new.tell() != about["size"]:
                    raise OSError(f"{new.tell():,} of {about['size']:,} bytes came")
                os.utime(new.fileno(), (written_sec, written_sec))
        except Exception as error:  # whatever the storage's client raises
            self._errors[host] = f"{relative}: {type(error).__name__}: {error}"
