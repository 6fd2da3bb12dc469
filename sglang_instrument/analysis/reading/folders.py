"""Read from a file's path where its records belong: role, worker, step, and whether it is validation."""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from sglang_instrument.errors import LogError

# Negative before a trainer has a number: verl's fully asynchronous recipe reports step -1.
_FOLDER: Final = re.compile(r"(step|validate)_(-?\d{1,9})$")
# worker_3.jsonl, scheduler_0_tp0.jsonl, worker_3.host-4711.jsonl (a second live process), each with .zst
_FILE: Final = re.compile(r"([A-Za-z][A-Za-z-]*)_(\d{1,9})(?:[_.].+)?$")
#: The processes in which an id that is bound makes a request; others work for the requests of these.
ROLE_OF_REQUESTS: Final = "worker"
ENDINGS: Final = (".jsonl", ".jsonl.zst")
#: The folder in which `prune` keeps what it deletes.
PRUNED: Final = ".pruned"
FOLDERS: Final = ("engine", "processes")  # besides step_N and validate_N
# Ours, but not logs: `live` is of the follower, `output` of the demo's workers, `.collect` of that command.
_NO_LOGS: Final = (
    *("processes", "profiles", "live", "output"),
    *(".locks", ".cache", ".collect", PRUNED, ".store"),  # `.cache` is of earlier versions
)


@dataclass(frozen=True)
class Place:
    """Where the records of a file belong. `stem` names the process; `step` is None outside step folders."""

    path: Path
    folder: str
    stem: str
    role: str
    worker: int
    step: int | None
    validate: bool


class UnreadableFolderError(LogError):
    """A folder that may not be listed."""


def entries(folder: Path) -> list[Path]:
    """Return what lies in a folder, in order.

    Raises:
        UnreadableFolderError: It may not be listed.
    """
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise UnreadableFolderError(f"{folder}: {error.strerror or error}") from None


def is_run_folder(folder: Path) -> bool:
    """Return whether a folder looks like that of one experiment; `prune` may have kept all of its steps."""
    return any(
        child.is_dir() and (is_part(child.name) or (child.name == PRUNED and bool(parts_of_pruned(child))))
        for child in entries(folder)
    )


def parts_of_pruned(home: Path) -> list[Path]:
    """Return the folders in `.pruned` of a run, the oldest first; drafts are hidden.

    None, if it may not be listed: `log_files` yields it then.
    """
    try:
        return [child for child in entries(home) if child.is_dir() and not child.name.startswith(".")]
    except UnreadableFolderError:
        return []


def log_files(folder: Path, only: Collection[str] | None = None) -> Iterator[Path]:
    """Yield the log files of an experiment: steps in order, then the files outside step folders.

    Args:
        folder: The experiment's folder.
        only: Names of the folders in it to look into, such as "step_12"; None stands for all.

    A folder that may not be listed stands for its files.
    """
    children = entries(folder) if only is None else [folder / name for name in only]
    parts = [child for child in children if child.is_dir() and (is_part(child.name) or child.name == PRUNED)]
    for part in sorted(parts, key=lambda part: _order(part.name)):
        try:
            paths = entries(part)
        except UnreadableFolderError:
            yield part
        else:
            if part.name not in _NO_LOGS:
                yield from (path for path in paths if path.name.endswith(ENDINGS))


def other_files(folder: Path, only: Collection[str] | None = None) -> Iterator[str]:
    """Yield what lies in an experiment's folder but is not a log, in order; folders end with a slash.

    Args:
        folder: The experiment's folder.
        only: As for `log_files`; what lies beside these folders is then left out.
    """
    children = entries(folder)
    for child in (path for path in children if only is None or path.name in only):
        if child.is_dir() and child.name not in _NO_LOGS and is_part(child.name):
            try:
                others = [path for path in entries(child) if not path.name.endswith(ENDINGS)]
            except UnreadableFolderError:  # `log_files` yields it
                continue
            yield from (f"{child.name}/{_named(path)}" for path in others)
        elif child.name not in _NO_LOGS:
            yield _named(child)


def logs_among(paths: Iterable[str]) -> list[str]:
    """Return those of these paths in an experiment's folder that `log_files` yields, in its order."""
    logs = []
    for path in paths:
        part, _, name = path.partition("/")
        if is_part(part) and part != "processes" and "/" not in name and name.endswith(ENDINGS):
            logs.append((_order(part), name, path))
    return [path for _, _, path in sorted(logs)]


def others_among(paths: Iterable[str]) -> list[str]:
    """Return what `other_files` yields for an experiment's folder with these files."""
    others = set()
    for path in paths:
        part, *below = path.split("/")
        if part in _NO_LOGS:
            continue
        if not below or not is_part(part):
            others.add(f"{part}/" if below else part)
        elif len(below) > 1 or not path.endswith(ENDINGS):
            others.add(f"{part}/{below[0]}/" if len(below) > 1 else path)
    return sorted(others, key=lambda path: path.split("/"))


def _named(path: Path) -> str:
    return f"{path.name}/" if path.is_dir() else path.name


def place_of(path: Path) -> Place | None:
    """Return where the records of a log file belong, or None if its name does not tell."""
    stem = path.name
    for ending in reversed(ENDINGS):
        stem = stem.removesuffix(ending)
    named = _FILE.match(stem)
    if named is None:
        return None
    folder = _FOLDER.match(path.parent.name)
    step = int(folder[2]) if folder else None
    validate = folder is not None and folder[1] == "validate"
    return Place(path, path.parent.name, stem, named[1], int(named[2]), step, validate)


@lru_cache(maxsize=100_000)  # called again and again for the same files of a run
def place_at(path: str) -> Place | None:
    """Return the same as `place_of`, by the path below the run's folder; None for that of a folder."""
    return None if path.endswith("/") else place_of(Path(path))


def is_part(name: str) -> bool:
    """Return whether a folder of this name in that of an experiment holds logs, or describes processes."""
    return name in FOLDERS or _FOLDER.match(name) is not None


def in_order(path: str) -> tuple[tuple[str, int], str]:
    """Return what sorts paths below a run's folder as `log_files` does."""
    part, _, name = path.partition("/")
    return _order(part), name


def _order(name: str) -> tuple[str, int]:
    numbered = _FOLDER.match(name)
    return (numbered[1], int(numbered[2])) if numbered else (name, 0)
