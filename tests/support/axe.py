"""axe-core, which checks pages against WCAG: npm fetches it, and without npm its tests are skipped."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from browser import PATIENCE_SEC, Browser

_PACKAGE = "axe-core@4.10.3"
_RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


def axe_source(folder: Path) -> str:
    """Return the code of axe-core, fetched into a folder."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm here: apt-get install npm")
    options = ("--ignore-scripts", "--no-save", "--no-audit", "--no-fund", "--prefix", str(folder))
    try:
        subprocess.run([npm, "install", *options, _PACKAGE], check=True, capture_output=True, timeout=120)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"npm cannot fetch {_PACKAGE}: {error}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


def violations(page: Browser, source: str) -> list[str]:
    """Return the rules that the page violates, each with its first elements."""
    page.driver.set_script_timeout(PATIENCE_SEC)
    page.driver.execute_script(source)
    run = "axe.run(document, {runOnly: arguments[0]}).then(arguments[1])"
    told: dict[str, Any] = page.driver.execute_async_script(run, _RULES)
    return [f"{one['id']}: {[node['target'] for node in one['nodes'][:3]]}" for one in told["violations"]]
