"""Find the experiments in a folder, or raise an error that says why there is none, or not one."""

import difflib
from pathlib import Path

from sglang_instrument.analysis.reading.folders import UnreadableFolderError, entries, is_run_folder
from sglang_instrument.analysis.store.earlier_datasets import is_earlier_dataset
from sglang_instrument.analysis.store.parts import is_dataset
from sglang_instrument.errors import LogError
from sglang_instrument.plain_text import listed


def find_run(path: Path) -> Path:
    """Return the folder of the one experiment that `path` means; raise LogError if it means none or many."""
    if not path.exists():
        raise LogError(f"{path}: no such folder{_nearest(path)}")
    if not path.is_dir():
        raise LogError(f"{path} is no log that can be read; the folder of a run holds step_N folders")
    if is_run_folder(path) or is_dataset(path) or is_earlier_dataset(path):
        return path
    experiments = experiments_in(path)
    if len(experiments) == 1:
        return path / experiments[0]
    if experiments:
        raise LogError(f"{path} holds {len(experiments)} experiments; name one: {_joined(path, experiments)}")
    if not entries(path):
        raise LogError(f"{path}: the folder is empty; did the run use another EXPERIMENT_NAME?")
    inside = f"; it may be {path.parent}" if is_run_folder(path.parent) else ""
    raise LogError(f"{path}: not a run{inside}; the folder of a run holds step_N/worker_R.jsonl")


def experiments_in(folder: Path) -> list[str]:
    """Return the names of the experiments that a folder holds."""
    return [child.name for child in entries(folder) if child.is_dir() and _is_readable_run(child)]


def unreadable_in(folder: Path) -> list[str]:
    """Return the names of folders in a folder that may not be listed, such as other people's experiments."""
    return [child.name for child in entries(folder) if child.is_dir() and not _is_readable(child)]


def _is_readable_run(folder: Path) -> bool:
    return _is_readable(folder) and is_run_folder(folder)


def _is_readable(folder: Path) -> bool:
    try:
        entries(folder)
    except UnreadableFolderError:
        return False
    return True


def _nearest(path: Path) -> str:
    """Suggest experiments with a similar name, next to the path or under logs/."""
    offers = {}
    for root in (path.parent, Path("logs")):
        if root.is_dir():
            offers.update({name: root / name for name in experiments_in(root)})
    close = difflib.get_close_matches(path.name, offers, n=3)
    if close:
        return f"; did you mean {' or '.join(str(offers[name]) for name in close)}?"
    return f"; there are: {listed(list(map(str, offers.values())), 4)}" if offers else ""


def _joined(root: Path, names: list[str]) -> str:
    return listed([str(root / name) for name in names], 20)
