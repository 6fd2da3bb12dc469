"""axe-core, which checks pages against WCAG; without npm its tests are skipped."""

from typing import Any

from browser import PATIENCE_SEC, Browser
from npm import npm_package

_PACKAGE = "axe-core@4.10.3"
_RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


def axe_source() -> str:
    """Return the code of axe-core."""
    return (npm_package(_PACKAGE) / "axe.min.js").read_text(encoding="utf-8")


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
