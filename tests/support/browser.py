"""A headless browser for tests of the report; without one, they are skipped."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

PATIENCE_SEC = 600  # only a dead machine takes longer
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *(
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--force-device-scale-factor=1",
    ),
    *("--hide-scrollbars", "--window-size=1440,1000"),
)


class Browser:
    """Opens reports and reads what they show."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path, where: str = "") -> "Browser":
        """Open a report at a section, step or request, and wait until it is ready."""
        self.driver.get("about:blank")  # so that the next URL loads the page again instead of scrolling in it
        self.driver.get(path.absolute().as_uri() + where)
        return self.ready()

    def reload(self) -> "Browser":
        self.driver.refresh()
        return self.ready()

    def ready(self) -> "Browser":
        return self.until("document.documentElement.dataset.ready === 'yes'")

    def js(self, expression: str, *arguments: Any) -> Any:
        """Return the value of an expression in the page; `arguments` are its arguments[0] ..."""
        return self.driver.execute_script(f"return ({expression})", *arguments)

    def do(self, code: str, *arguments: Any) -> "Browser":
        self.driver.execute_script(code, *arguments)
        return self

    def until(self, condition: str) -> "Browser":
        """Wait until an expression is true; after a timeout, fail with it and the page's errors."""
        wait = WebDriverWait(self.driver, PATIENCE_SEC, poll_frequency=0.05)
        wait.until(lambda _: self.js(condition), message=condition)
        return self

    def text(self, element: str) -> str:
        return str(self.js("document.getElementById(arguments[0]).innerText", element))

    def draw_all(self) -> "Browser":
        """Draw the charts that are not near the screen, too."""
        self.driver.set_script_timeout(PATIENCE_SEC)
        self.driver.execute_async_script("sglangReport.drawAll().then(() => arguments[0](), arguments[0])")
        return self

    def choose(self, element: str, value: Any) -> "Browser":
        """Set a field as a user does."""
        return self.do(
            "const field = document.getElementById(arguments[0]); field.value = arguments[1];"
            "field.dispatchEvent(new Event('input', {bubbles: true}));",
            element,
            value,
        )

    def complaints(self) -> list[str]:
        """Return the errors of the page and of the console since the last call."""
        console = [entry["message"] for entry in self.driver.get_log("browser")]
        return [*console, *self.js("sglangReport.errors")]

    def requests(self) -> list[str]:
        """Return the addresses requested since the last call, except local files and the page itself."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        asked = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        of_reports = [
            parameters["request"]["url"]
            for parameters in asked
            if parameters["documentURL"].startswith("file:")
        ]
        return [url for url in of_reports if not url.startswith(("file:", "data:", "blob:"))]


@contextmanager
def browser(scratch: Path, *flags: str) -> Iterator[Browser]:
    """Start a browser with its own profile; skip the test if there is no browser."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    chromedriver = shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("no Chromium with its driver here: apt-get install chromium chromium-driver")
    driver = _started(chromium, chromedriver, scratch, flags)
    try:
        driver.command_executor.client_config.timeout = PATIENCE_SEC  # a command's; 120 s if it is not told
        driver.set_page_load_timeout(PATIENCE_SEC)
        yield Browser(driver)
    finally:
        driver.quit()


def _started(chromium: str, chromedriver: str, scratch: Path, flags: tuple[str, ...]) -> Any:
    """Start a driver and its browser; try again if they did not start in time on a busy machine."""
    for attempt in range(3):
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for flag in (*FLAGS, f"--user-data-dir={scratch / f'profile_{attempt}'}", *flags):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        try:
            return webdriver.Chrome(options=options, service=Service(chromedriver))
        except WebDriverException:
            if attempt == 2:
                raise
    return None
