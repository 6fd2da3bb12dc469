"""Packages of npm, which fetches each once into `.cache`; without npm, tests that need one are skipped."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

_CACHE = Path(__file__).parents[2] / ".cache"


def npm_package(package: str) -> Path:
    """Return the folder of a package such as "axe-core@4.10.3"; no script of it is run."""
    name = package.rpartition("@")[0]
    folder_of_package = _CACHE / package
    if not folder_of_package.exists():
        _CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as folder:
            fetched = _fetched(package, folder) / name
            try:
                os.rename(fetched, folder_of_package)  # noqa: PTH104 - at once: other processes may do the same
            except OSError:
                if not folder_of_package.exists():
                    raise
    return folder_of_package


def _fetched(package: str, folder: str) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm here: apt-get install npm")
    options = ("--ignore-scripts", "--no-save", "--no-audit", "--no-fund", "--prefix", folder)
    try:
        subprocess.run([npm, "install", *options, package], check=True, capture_output=True, timeout=120)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"npm cannot fetch {package}: {error}")
    return Path(folder) / "node_modules"
