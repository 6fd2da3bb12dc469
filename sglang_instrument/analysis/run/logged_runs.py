"""Tell apart the runs that share a folder: a launch of a trainer is a run, and has its own id."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sglang_instrument.analysis.reading.files import File, RunFiles, newest_runs
from sglang_instrument.analysis.reading.launches import at_once
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
    """Return the id of the launch with a run that begins with `wanted`; raise LogError if not one has."""
    files = RunFiles.of(files)
    known = list(files.begins)
    begun = [run_id for run_id in files.members(known) if run_id.startswith(wanted)]
    run_ids = [wanted] if wanted in known else sorted({files.launch_of(run_id) for run_id in begun})
    if len(run_ids) == 1:
        return run_ids[0]
    why = f"{len(run_ids)} runs begin with" if run_ids else "no run"
    offered = ", ".join((run_ids or known)[-_NAMED:]) or "none has an id"
    raise LogError(f"{folder}: {why} {wanted!r}; its newest runs: {offered}")


def runs_of_trainers(files: Sequence[File]) -> list[str]:
    """Return the ids of the launches that logged steps, oldest first; without any, those of engine's logs.

    Servers that are started by hand have a run id of their own.
    """
    files = RunFiles.of(files)
    of_steps = {launch.run_id for launch in files.all_launches if launch.logs_steps}
    begun = list(files.begins)
    return [run_id for run_id in begun if run_id in of_steps] or begun


def describe_runs(files: Sequence[File]) -> str:
    """Return which run the steps of a folder are of, where several runs share it; else ""."""
    files = RunFiles.of(files)
    runs, beside = runs_of_trainers(files), at_once(files.all_launches)
    if len(runs) < 2:
        return ""
    steps = [run for folder, run in newest_runs(files).items() if folder.startswith("step_")]
    older = sum(1 for run in steps if run in runs[:-1] and run not in beside)
    others = sum(1 for run in steps if run in runs[:-1] and run in beside)
    rest = f"; {older} {'step is' if older == 1 else 'steps are'} of older runs" if older else ""
    rest += f"; {others} {'step is' if others == 1 else 'steps are'} of the others" if others else ""
    if runs[-1] in beside:
        return f"run {runs[-1]}, one of {len(beside)} launches that write here at the same time{rest}"
    return f"run {runs[-1]}, the newest of {len(runs)}{rest}"
