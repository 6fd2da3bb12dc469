"""Ask `py-spy` where a process stands that cannot say so itself; it reads the memory and stops nothing."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any, Final

_PATIENCE_SEC: Final = 10.0
_FRAMES: Final = 16  # innermost frames
_NOT_THE_PROGRAMS: Final = ("/lib/python3", "-packages/", "<frozen ", "/sglang_instrument/patching/")


def stack_of(pid: int) -> tuple[str, ...]:
    """Return the frames of the thread that holds the interpreter's lock, or of the main one, innermost last.

    Returns:
        () where `py-spy` is not installed, or may not read the process.
    """
    program = shutil.which("py-spy")
    if program is None:
        return ()
    command = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        dumped = subprocess.run(  # noqa: S603 - no shell, and a process id is a number
            command, capture_output=True, timeout=_PATIENCE_SEC, check=True
        )
        threads = json.loads(dumped.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()
    return _frames(threads)


def place_in(stack: Sequence[str]) -> str | None:
    """Return the innermost frame of the program's own code, else the innermost; None of an empty stack."""
    program_frames = [frame for frame in stack if not any(part in frame for part in _NOT_THE_PROGRAMS)]
    frames = program_frames or list(stack)
    return frames[-1] if frames else None


def _frames(threads: Any) -> tuple[str, ...]:
    known = [thread for thread in threads if isinstance(thread, dict) and thread.get("frames")]
    held = [thread for thread in known if thread.get("owns_gil")]
    main = [thread for thread in known if thread.get("thread_name") == "MainThread"]
    for thread in [*held, *main, *known][:1]:
        inner_first = thread["frames"][:_FRAMES]
        return tuple(
            f"{frame.get('filename')}:{frame.get('line')} {frame.get('name')}" for frame in inner_first[::-1]
        )
    return ()
