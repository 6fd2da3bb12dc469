"""List, hash and send a run's files where they lie; pickled by value: a node may lack this version, or us.

So this module imports nothing but the standard library, and zstandard where the node has it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import stat
import zlib
from typing import Any

#: Bytes that are read at once.
BLOCK = 2**20
#: The most that is read of a first line, and the step in which the last newline is searched.
HEAD = 2**16
#: What names of logs end with.
LOGS = (".jsonl", ".jsonl.zst")


def sizes(folder: str) -> dict[str, tuple[int, int, int]]:
    """Return what lies in the run's folder: of each folder its logs, their bytes, and those of .zst files.

    Args:
        folder: As for `look`.
    """
    return sizes_in(os.path.expandvars(folder))


def sizes_in(root: str) -> dict[str, tuple[int, int, int]]:
    """Return the same as `sizes`, of a folder whose name holds no variables."""
    sizes_by_name: dict[str, tuple[int, int, int]] = {}
    for entry in _entries(root):
        if not entry.is_dir():
            sizes_by_name[entry.name] = (0, 0, 0)
            continue
        logs = [(entry.name, _size(entry)) for entry in _entries(entry.path) if entry.name.endswith(LOGS)]
        packed = sum(size for name, size in logs if name.endswith(".zst"))
        sizes_by_name[f"{entry.name}/"] = (len(logs), sum(size for _, size in logs), packed)
    return sizes_by_name


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except OSError:  # deleted meanwhile, or not for this user: what reads it says so
        return []


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except OSError:
        return 0


def look(folder: str, only: list[str] | None = None) -> dict[str, Any]:
    """Return the host, the folder and the run's files in it.

    Args:
        folder: The run's folder; variables such as $TMPDIR are expanded here, on the node.
        only: Names of folders in it, as if there were nothing else; None stands for all.
    """
    root = os.path.expandvars(folder)
    described: list[dict[str, Any]] = []
    for parent, names, files in os.walk(root):
        names[:] = [name for name in names if not name.startswith(".") or name == ".pruned"]
        beside = only is not None and parent == root
        if beside:
            names[:] = [name for name in names if name in (only or ())]
        for name in () if beside else files:
            path = os.path.join(parent, name)  # noqa: PTH118 - as text: a run has a million files
            try:
                relative = os.path.relpath(path, root)
                relative.encode()
                file = None if name.startswith(".") else describe(path, relative)
            except (OSError, UnicodeEncodeError):  # deleted meanwhile; a name that is no text
                continue
            if file is not None:
                described.append(file)
    return {"host": os.uname().nodename, "exists": os.path.isdir(root), "files": described}  # noqa: PTH112


def describe(path: str, relative: str) -> dict[str, Any] | None:
    """Return what identifies a regular file and how much of it can be taken; None for links and FIFOs.

    `whole` is the end of its last complete line; a file without lines is whole as it is. `key` is the hash of
    what does not change while the file grows: a log's first line has host, pid and time of its writer. The
    description of a process is replaced again and again; its key is the process.
    """
    if not stat.S_ISREG(os.lstat(path).st_mode):
        return None
    with _open(path) as file:
        about = os.fstat(file.fileno())
        is_log = path.endswith(".jsonl")
        head = file.read(HEAD if is_log else BLOCK)
        whole = _last_newline(file, about.st_size) if is_log else about.st_size
    return {
        "path": relative,
        "size": about.st_size,
        "whole": whole,
        "mtime_ns": about.st_mtime_ns,
        "inode": about.st_ino,
        "key": _hash(head.partition(b"\n")[0] if is_log else _process(head, relative) or head),
        "is_log": is_log,
    }


def versions() -> dict[str, str | None]:
    """Return the versions of what reads logs, as this node has them: None for what is not installed."""
    installed: dict[str, str | None] = {}
    for name in ("sglang_instrument", "polars", "msgspec", "zstandard"):
        try:
            installed[name] = str(importlib.import_module(name).__version__)
        except ImportError:
            installed[name] = None
    return installed


def hashes(folder: str, wanted: list[tuple[str, int]]) -> list[str]:
    """Return the SHA-256 of the first bytes of each of these files: (path, how many)."""
    root = os.path.expandvars(folder)
    return [hash_start(os.path.join(root, path), size) for path, size in wanted]  # noqa: PTH118


def hash_start(path: str, size: int) -> str:
    """Return the SHA-256 of the first `size` bytes of a file, or of all, if it has fewer."""
    total = hashlib.sha256()
    with _open(path) as file:
        while size > 0 and (block := file.read(min(BLOCK, size))):
            total.update(block)
            size -= len(block)
    return total.hexdigest()


def send(folder: str, wanted: list[tuple[str, int, int]], compress: bool) -> tuple[str, list[int], bytes]:
    """Return parts of files, one after the other.

    Args:
        folder: The run's folder.
        wanted: (path, begin, end) in bytes.
        compress: Whether to compress them: by zstd, or by zlib where the node has no zstandard.

    Returns:
        How they are compressed, the length of each part, and the bytes.
    """
    root = os.path.expandvars(folder)
    parts = []
    for path, begin, end in wanted:
        with _open(os.path.join(root, path)) as file:  # noqa: PTH118
            file.seek(begin)
            parts.append(file.read(end - begin))
    together = b"".join(parts)
    lengths = [len(part) for part in parts]
    if not compress:
        return "none", lengths, together
    try:
        import zstandard
    except ImportError:
        return "zlib", lengths, zlib.compress(together, 3)
    compressor = zstandard.ZstdCompressor(compression_params=_for_logs(zstandard))
    return "zstd", lengths, compressor.compress(together)


def _for_logs(zstandard: Any) -> Any:
    """Return parameters of zstd for logs: four times as fast as level 6, for as many bytes.

    Lines repeat the lines before them. A small table of positions finds near matches, which take fewer bits;
    matches of 64 bytes and more are found over a MiB.
    """
    return zstandard.ZstdCompressionParameters(
        strategy=zstandard.STRATEGY_FAST,
        window_log=20,
        hash_log=11,
        chain_log=11,
        min_match=7,
        enable_ldm=True,
        ldm_min_match=64,
        ldm_hash_rate_log=6,
    )


def _open(path: str) -> Any:
    # O_NOFOLLOW, O_NONBLOCK: the file may have become a link or a FIFO since it was listed.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    return os.fdopen(descriptor, "rb", buffering=0)


def _last_newline(file: Any, size: int) -> int:
    """Return the end of the last complete line within the first `size` bytes."""
    end = size
    while end > 0:
        begin = max(0, end - HEAD)
        file.seek(begin)
        newline = file.read(end - begin).rfind(b"\n")
        if newline >= 0:
            return int(begin + newline + 1)
        end = begin
    return 0


def _process(head: bytes, relative: str) -> bytes:
    """Return the host and the id of the process that a file in `processes/` describes; else b""."""
    if not relative.startswith("processes/"):
        return b""
    try:
        facts = json.loads(head)
        return f"process {facts['host']} {facts['pid']}".encode()
    except (ValueError, TypeError, KeyError):
        return b""


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
