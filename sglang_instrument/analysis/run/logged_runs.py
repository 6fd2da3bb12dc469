"""Tell apart the runs that share a folder: a launch of a trainer is a run, and has its own id."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sglang_instrument.analysis.reading.files import File, newest_runs, run_begins
from sglang_instrument.errors import LogError

_NAMED: Final = 10  # run ids in an error


def split_run_id(path: Path) -> tuple[Path, str | None]:
    """Split `logs/gsm8k_600@RUN` into the experiment's folder and a run id; None for the newest run.

    A folder whose own name holds an `@` is that folder.
    """
    name, _, run_id = path.name.rpartition("@")
    if not name or not run_id or not path.with_name(name).is_dir() or _exists(path):
        return path, None
    return path.with_name(name), run_id


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # an id may be longer than the name of a file
        return False


def find_run_id(folder: Path, files: Sequence[File], wanted: str) -> str:
    """Return the id of the run that begins with `wanted`; raise LogError if none or several do."""
    known = list(run_begins(files))
    found = [wanted] if wanted in known else [one for one in known if one.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    why = f"{len(found)} runs begin with" if found else "no run"
    offered = ", ".join((found or known)[-_NAMED:]) or "none has an id"
    raise LogError(f"{folder}: {why} {wanted!r}; its newest runs: {offered}")


def runs_of_trainers(files: Sequence[File]) -> list[str]:
    """Return the ids of the runs that logged steps, oldest first; without any, those of the engine's logs.

    Servers that are started by hand have a run id of their own.
    """
    of_steps = [file for file in files if file.place is not None and file.place.step is not None]
    return list(run_begins(of_steps) or run_begins(files))


def describe_runs(files: Sequence[File]) -> str:
    """Return which run the steps of a folder are of, where several runs share it; else ""."""
    runs = runs_of_trainers(files)
    if len(runs) < 2:
        return ""
    of_older = sum(
        1 for folder, run in newest_runs(files).items() if run in runs[:-1] and folder.startswith("step_")
    )
    rest = f"; {of_older} {'step is' if of_older == 1 else 'steps are'} of older runs" if of_older else ""
    return f"run {runs[-1]}, the newest of {len(runs)}{rest}"
