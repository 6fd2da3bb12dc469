"""axe-core, which checks pages against WCAG: npm fetches it once, and without npm its tests are skipped."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from browser import PATIENCE_SEC, Browser

_PACKAGE = "axe-core@4.10.3"
_KEPT = Path(__file__).parents[2] / ".cache" / f"{_PACKAGE}.js"
_RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


def axe_source() -> str:
    """Return the code of axe-core, which `.cache` keeps."""
    if not _KEPT.exists():
        _KEPT.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_KEPT.parent) as folder:
            os.replace(_fetched(folder), _KEPT)  # noqa: PTH105 - at once: other processes may do the same
    return _KEPT.read_text(encoding="utf-8")


def _fetched(folder: str) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm here: apt-get install npm")
    options = ("--ignore-scripts", "--no-save", "--no-audit", "--no-fund", "--prefix", folder)
    try:
        subprocess.run([npm, "install", *options, _PACKAGE], check=True, capture_output=True, timeout=120)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"npm cannot fetch {_PACKAGE}: {error}")
    return Path(folder) / "node_modules" / "axe-core" / "axe.min.js"


def violations(page: Browser, source: str) -> list[str]:
    """Return the rules that the page violates, each with its first elements."""
    page.driver.set_script_timeout(PATIENCE_SEC)
    page.driver.execute_script(source)
    run = "axe.run(document, {runOnly: arguments[0]}).then(arguments[1])"
    report: dict[str, Any] = page.driver.execute_async_script(run, _RULES)
    return [
        f"{violation['id']}: {[node['target'] for node in violation['nodes'][:3]]}"
        for violation in report["violations"]
    ]
