"""Run a script on the GPU, in a process that has no CUDA context until it makes one."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _has_gpu():
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


needs_cuda = pytest.mark.skipif(not _has_gpu(), reason="needs a CUDA device: none here")


def run(script, *arguments):
    """Run the lines of `script` with arguments; return what came of it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment, check=False, cwd=ROOT
    )
