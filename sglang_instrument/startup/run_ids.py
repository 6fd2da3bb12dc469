"""Name the launch that a process belongs to. Few imports: the start-up hook loads this in every process."""

from __future__ import annotations

import os
import sys
import time

from sglang_instrument import launchers

TYPE_CHECKING = False  # importing it from typing takes longer than the hook may
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

#: The switch: "1" in the environment of a process asks the start-up hook and the plugins to install.
SWITCH: Final = "SGLANG_INSTRUMENT"
#: Id of the launch; its first process sets it before it installs anything.
LAUNCH: Final = "SGLANG_INSTRUMENT_LAUNCH"
#: Host and process id of the process that installed first; all others are its descendants or Ray workers.
DRIVER: Final = "SGLANG_INSTRUMENT_DRIVER"
#: Folders with the user's own tables; the hook reads the packages from them.
PATCHES: Final = "SGLANG_INSTRUMENT_PATCHES"
#: More packages at whose first import the hook installs: those of the user's own tables.
PACKAGES: Final = "SGLANG_INSTRUMENT_PACKAGES"


def is_asked(environment: Mapping[str, str]) -> bool:
    """Return whether the environment asks for instrumentation."""
    return environment.get(SWITCH, "").strip().lower() not in ("", "0", "false", "no", "off")


def is_refused(environment: Mapping[str, str]) -> bool:
    """Return whether the environment explicitly forbids instrumentation, as `SGLANG_INSTRUMENT=0` does."""
    return SWITCH in environment and environment[SWITCH] != "" and not is_asked(environment)


def new_run_id(environment: Mapping[str, str]) -> str:
    """Return the id of the launch if a launcher or a parent sets one, else a new id."""
    elastic = launchers.elastic_id(environment)
    if elastic is not None:
        import zlib  # few processes need it

        # Another launch may have the same id, and another node the same launch: readers join these.
        launcher = launchers.launcher_of(environment, os.uname().nodename)
        restarts = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        return f"torchrun-{elastic}-{restarts}-{zlib.crc32(launcher.encode()):08x}"
    ray_job = _ray_job()
    if ray_job is not None:
        return ray_job
    if "SLURM_JOB_ID" in environment:
        restarts, step = environment.get("SLURM_RESTART_COUNT", "0"), environment.get("SLURM_STEP_ID", "0")
        return f"slurm-{environment['SLURM_JOB_ID']}-{restarts}-{step}"
    return environment.get(LAUNCH) or f"{time.strftime('%Y%m%dT%H%M%S')}-{os.urandom(3).hex()}"


def _ray_job() -> str | None:
    """Return the name of this worker's Ray job, the same on all nodes; None outside a Ray worker.

    It also wins over Slurm's id: there each node's `ray start` is a job step with its own number.
    """
    named = [word for word in sys.orig_argv if word.startswith("--session-name=session_")]
    try:
        job = sys.modules["ray"].get_runtime_context().get_job_id() if named else None
    except Exception:  # not imported, or not connected yet
        return None
    return f"ray-{named[0].partition('session_')[2]}-{job}" if job else None
