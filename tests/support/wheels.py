"""Download wheels of other projects once, keep them below .envs; they are read and never imported."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

WHEELS = Path(__file__).parents[2] / ".envs/wheels"


def wheel_of(package, version):
    """Return the path of a package's wheel; skip the test if it cannot be downloaded."""
    pattern = f"{package}-{version}-*.whl"
    if not list(WHEELS.glob(pattern)):
        WHEELS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=WHEELS) as arriving:  # another process may ask for the same one
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", arriving]
            done = subprocess.run([*command, f"{package}=={version}"], capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no wheel of {package} {version}: {done.stderr.strip()[-200:]}")
            for wheel in Path(arriving).glob(pattern):
                wheel.replace(WHEELS / wheel.name)
    return next(WHEELS.glob(pattern))
