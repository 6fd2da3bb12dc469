"""Read what a process runs on: cores, memory, GPUs, and the commit of the code that it was started from.

Everything is read from files, once: no process is started, and no CUDA context is made.
"""

import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REFERENCE: Final = re.compile(r"ref: (refs/[\w./-]+)")
_MOST_BYTES: Final = 2**20
_GPUS: Final = Path("/proc/driver/nvidia/gpus")
_DRIVER: Final = Path("/proc/driver/nvidia/version")


@cache
def described() -> dict[str, Any]:
    """Return cores, memory_bytes, numa_nodes, gpus (models), gpu_driver, commit: those that are known."""
    facts: dict[str, Any] = {
        "cores": _cores(),
        "memory_bytes": _memory_bytes(),
        "numa_nodes": len(_names(Path("/sys/devices/system/node"), "node")) or None,
        "gpus": _gpus() or None,
        "gpu_driver": _number_in(_read(_DRIVER), r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)"),
        "commit": commit_of(_started_in()),
    }
    return {name: fact for name, fact in facts.items() if fact is not None}


def _cores() -> float | None:
    """Return how many cores this process may use: of its affinity, or of its control group's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota, _, period = _read(Path("/sys/fs/cgroup/cpu.max")).partition(" ")
    if quota.isdigit() and period.strip().isdigit() and allowed is not None:
        return min(allowed, round(int(quota) / int(period), 2))
    return allowed


def _memory_bytes() -> int | None:
    """Return the machine's memory, or the limit of the control group if that is lower."""
    kilobytes = _number_in(_read(Path("/proc/meminfo")), r"MemTotal:\s+(\d+) kB")
    limit = _read(Path("/sys/fs/cgroup/memory.max")).strip()
    sizes = [int(kilobytes) * 1024] if kilobytes else []
    sizes += [int(limit)] if limit.isdigit() else []
    return min(sizes, default=None)


def _gpus() -> list[str]:
    """Return the model of each GPU of the machine, as NVIDIA's driver names it."""
    texts = [_read(_GPUS / name / "information") for name in _names(_GPUS, "")]
    models = [_number_in(text, r"Model:\s+(\S[^\n]*?)\s*\n") for text in texts]
    return [model for model in models if model is not None]


def _started_in() -> Path:
    """Return the folder of the program, or the current one."""
    program = Path(sys.argv[0] if sys.argv and sys.argv[0] else ".")
    try:
        return program.absolute().parent if _is_file(program) else Path.cwd()
    except OSError:  # the current folder was deleted
        return Path("/")


def commit_of(folder: Path) -> str | None:
    """Return the commit that is checked out in the Git repository around a folder; None without one."""
    for place in (folder, *folder.parents):
        git = place / ".git"
        if _is_file(git):  # of a worktree or a submodule
            git = place / _read(git).removeprefix("gitdir:").strip()
        if _is_file(git / "HEAD"):
            return _head_of(git)
    return None


def _head_of(git: Path) -> str | None:
    head = _read(git / "HEAD").strip()
    if _COMMIT.fullmatch(head):
        return head
    reference = _REFERENCE.fullmatch(head)
    if reference is None:
        return None
    common = git / (_read(git / "commondir").strip() or ".")
    for folder in (git, common):
        commit = _read(folder / reference[1]).strip()
        if _COMMIT.fullmatch(commit):
            return commit
    return _number_in(_read(common / "packed-refs"), rf"(?m)^([0-9a-f]{{40,64}}) {re.escape(reference[1])}$")


def _names(folder: Path, begin: str) -> list[str]:
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return []
    return sorted(
        name for name in names if name.startswith(begin) and (not begin or name[len(begin) :].isdigit())
    )


def _is_file(path: Path) -> bool:
    """Return whether a file is there and may be looked at; `Path.is_file` raises where that is forbidden."""
    return os.path.isfile(path)  # noqa: PTH113 - for this reason


def _read(path: Path) -> str:
    """Return the text of a small file; "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _number_in(text: str, pattern: str) -> str | None:
    match = re.search(pattern, text)
    return match[1] if match else None
