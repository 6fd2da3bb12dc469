"""Small file systems, to fill up."""

import shutil
import subprocess
from contextlib import contextmanager

import pytest


@contextmanager
def small_disk(folder, size):
    """Mount a file system in memory for a block; skip the test where that is not allowed."""
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command here")
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"a file system of one's own cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
