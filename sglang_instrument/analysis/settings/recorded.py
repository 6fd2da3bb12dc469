"""Read the settings that the processes of a run recorded: of engine, trainer, this package and machine."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sglang_instrument.analysis.reading.processes_of_run import read_processes
from sglang_instrument.analysis.reading.records.gpu_records import gpus_opened
from sglang_instrument.analysis.run.losses import used_runs
from sglang_instrument.errors import LogError

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

#: Sources of settings that are no objects of the engine or the trainer.
OURS: Final = "sglang_instrument"
MACHINE: Final = "machine"
PACKAGES: Final = "packages"
#: The role of what watches a run from outside.
FOLLOWER: Final = "follower"

_PREFIX: Final = "SGLANG_INSTRUMENT_"

Value = bool | int | float | str | None


class Setting(NamedTuple):
    """A setting of a process.

    Attributes:
        process: The process, such as "worker_3"; of what a follower read of a host, "follower_HOST".
        role: Its role, such as "worker"; None if it recorded nothing.
        source: What holds the setting: "server_args", "config", or one of OURS, MACHINE, PACKAGES.
        name: Its name in there, with dots, such as "actor_rollout_ref.rollout.n".
        value: Its value.
    """

    process: str
    role: str | None
    source: str
    name: str
    value: Value


def settings_of_run(run: Run) -> list[Setting]:
    """Return the settings of a run, by process; none of an older run, which a newer one overwrote."""
    return settings_of(run.home, run.files.members(used_runs(run.files)))


def settings_of(folder: Path, runs: Collection[str] = ()) -> list[Setting]:
    """Return the settings of the newest run in a folder, by process; none if no process described itself.

    Args:
        folder: The run's folder.
        runs: None, if the newest run is not among these. Without any, it does not matter which it is.
    """
    try:
        newest = read_processes(folder)
    except LogError:  # a log of another writer
        return []
    if runs and newest.run_id not in runs:
        return []
    processes = {**newest.processes, **_followers(folder, newest.run_id)}
    return [setting for process, facts in processes.items() for setting in _of_process(process, facts)]


def _followers(folder: Path, run_id: str) -> dict[str, dict[str, Any]]:
    """Return what followers read of the GPUs of each host, in the form of a process's facts."""
    return {
        f"{FOLLOWER}_{opened.host}": {
            "role": FOLLOWER,
            "machine": {"gpus": [gpu.name for gpu in opened.gpus], "gpu_driver": opened.driver},
        }
        for opened in gpus_opened(folder)
        if opened.run_id == run_id
    }


def _of_process(process: str, facts: Mapping[str, Any]) -> Iterator[Setting]:
    python = {"python": facts["python"]} if "python" in facts else {}
    sources = {
        **_mapping(facts.get("configuration")),
        OURS: {name.removeprefix(_PREFIX): value for name, value in _mapping(facts.get("settings")).items()},
        MACHINE: facts.get("machine"),
        PACKAGES: {**python, **_mapping(facts.get("versions"))},
    }
    role = facts.get("role")
    for source, values in sources.items():
        for name, value in _mapping(values).items():
            for full_name, single in _single_values(name, value):
                yield Setting(process, role if isinstance(role, str) else None, source, full_name, single)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _single_values(name: str, value: Any) -> Iterator[tuple[str, Value]]:
    """Yield a value under its name, or the items of a list under numbered names."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _single_values(f"{name}.{number}", item)
    elif value is None or isinstance(value, (bool, int, float, str)):
        yield name, value
