"""Name the launch that a process belongs to; light, for the start-up hook imports it in every process."""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # typing's own costs more to import than the hook may
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

#: The switch: "1" in the environment of a process asks the start-up hook and the plugins to install.
SWITCH: Final = "SGLANG_INSTRUMENT"
#: What the first process of a launch calls it, before anything is installed there.
LAUNCH: Final = "SGLANG_INSTRUMENT_LAUNCH"
#: Host and process id of the process that installed first; the others are its children, near or far.
DRIVER: Final = "SGLANG_INSTRUMENT_DRIVER"
#: Folders with tables of the user's own: a setting, and what the hook has to look into.
PATCHES: Final = "SGLANG_INSTRUMENT_PATCHES"
#: More packages at whose first import the hook installs: those of the users' own tables.
PACKAGES: Final = "SGLANG_INSTRUMENT_PACKAGES"


def is_asked(environment: Mapping[str, str]) -> bool:
    """Return whether the environment asks for instrumentation."""
    return environment.get(SWITCH, "").strip().lower() not in ("", "0", "false", "no", "off")


def is_refused(environment: Mapping[str, str]) -> bool:
    """Return whether the environment says, in so many words, that nothing shall be installed."""
    return SWITCH in environment and environment[SWITCH] != "" and not is_asked(environment)


def new_run_id(environment: Mapping[str, str]) -> str:
    """Return an id that all processes of one launch share, as far as a launcher or a parent names one."""
    elastic = environment.get("TORCHELASTIC_RUN_ID", "none")
    if elastic != "none":
        return f"{elastic}-{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    ray_job = _ray_job()
    if ray_job is not None:
        return ray_job
    if "SLURM_JOB_ID" in environment:
        restarts, step = environment.get("SLURM_RESTART_COUNT", "0"), environment.get("SLURM_STEP_ID", "0")
        return f"slurm-{environment['SLURM_JOB_ID']}-{restarts}-{step}"
    return environment.get(LAUNCH) or f"{time.strftime('%Y%m%dT%H%M%S')}-{os.urandom(3).hex()}"


def _ray_job() -> str | None:
    """Return a name of the Ray job that this process is a worker of, one for all nodes; None outside of one.

    Under Slurm, too: there each node's `ray start` is a job step with a number of its own.
    """
    named = [word for word in sys.orig_argv if word.startswith("--session-name=session_")]
    try:
        job = sys.modules["ray"].get_runtime_context().get_job_id() if named else None
    except Exception:  # not imported, or not connected yet
        return None
    return f"ray-{named[0].partition('session_')[2]}-{job}" if job else None
