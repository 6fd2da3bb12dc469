"""Name the launch that torchrun, Slurm, MPI or a script started this process in, and its rank there.

Ranks of one launch need not know a common id: with a fixed master, torchrun tells each only the master's
address. So a process records what it knows, and readers join the processes of one launch.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing it from typing takes longer than the start-up hook may
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Final

#: A parent hands its launcher to its children here: their own parent is no launcher.
LAUNCHER: Final = "SGLANG_INSTRUMENT_LAUNCHER"
# By torchrun and scripts, Open MPI, PMIx, the process managers of MPICH and Intel MPI, and MVAPICH.
_RANKS: Final = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
_PROCESSES: Final = ("multiprocessing.process", "multiprocess.process", "billiard.process")
_MPI_JOBS: Final = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid", "PMI_JOBID")


def rank_of(environment: Mapping[str, str]) -> int | None:
    """Return the rank that the launcher gave this process; None without a launcher that numbers processes."""
    for name in _RANKS:
        if environment.get(name, "").isdigit():
            return int(environment[name])
    in_step = "SLURM_STEP_ID" in environment and environment.get("SLURM_NTASKS", "1") != "1"
    rank = environment.get("SLURM_PROCID", "") if in_step else ""
    return int(rank) if rank.isdigit() else None


def key_of(environment: Mapping[str, str]) -> str | None:
    """Return what all ranks of a launch have in common, and perhaps other launches, too; None if nothing."""
    elastic, master = elastic_id(environment), environment.get("MASTER_ADDR")
    if elastic is not None and elastic != "none":
        return f"torchelastic {elastic}"
    if master:
        return f"master {master.rpartition('@')[2]}:{environment.get('MASTER_PORT', '')}"
    if "SLURM_JOB_ID" in environment:
        return f"slurm {environment['SLURM_JOB_ID']}.{environment.get('SLURM_STEP_ID', '')}"
    job = next((environment[name] for name in _MPI_JOBS if environment.get(name)), None)
    return None if job is None else f"mpi {job}"


def elastic_id(environment: Mapping[str, str]) -> str | None:
    """Return torchrun's id of the launch, "none" where its user gave none; None without torchrun."""
    return environment.get("TORCHELASTIC_RUN_ID")


def launcher_of(environment: Mapping[str, str], host: str) -> str:
    """Return host, process id and start of the process that started this one, or its parents."""
    inherited = environment.get(LAUNCHER)
    return inherited or f"{host}:{os.getppid()}:{_started(os.getppid())}"


def launch_of(environment: Mapping[str, str], host: str) -> dict[str, Any]:
    """Return what a process records of its launch: `launch`, `launcher` and `rank`; {} without a launcher."""
    key, rank = key_of(environment), rank_of(environment)
    if key is None or rank is None:
        return {}
    return {"launch": key, "launcher": launcher_of(environment, host), "rank": rank}


def is_child() -> bool:
    """Return whether a kind of multiprocessing has started this process, by any of its methods."""
    return any(_is_child(sys.modules.get(name)) for name in _PROCESSES)


def _is_child(process: Any) -> bool:
    current = getattr(process, "current_process", None)
    return current is not None and getattr(current(), "_parent_pid", None) is not None


def _started(pid: int) -> str:
    """Return the start of a process, in clock ticks since the machine's; "" where there is no /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib takes long to import
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return ""
