"""Start processes of ours with this interpreter: they read logs, and must not write one."""

import os
from pathlib import Path


def environment(**more: str) -> dict[str, str]:
    """Return the environment of such a process, which imports this same package."""
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1", "SGLANG_INSTRUMENT": "0"}
    return {**os.environ, **ours, **more}
