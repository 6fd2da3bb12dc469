"""Make the pictures of the report in docs/images: `python docs/screenshots.py`, with Chromium and its driver.

The story of step 67 is made up (`demo --synthetic step-67`), and so are the two runs that are compared. The
run in the dark timeline is a real one of `demo`.
"""

from __future__ import annotations

import base64
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from browser import Browser, browser  # noqa: E402 - the tests' own
from live_served import hanging, served  # noqa: E402 - as above
from live_writer import LiveRun  # noqa: E402 - as above

from sglang_instrument.cli.main import main  # noqa: E402
from sglang_instrument.demo.synthetic import write  # noqa: E402
from sglang_instrument.testing import SlowEngine, synthetic_run  # noqa: E402

IMAGES: Final = ROOT / "docs" / "images"
DEMO: Final = ROOT / "tests" / "logs" / "demo"
WIDTH, HEIGHT, SHARPNESS = 1400, 880, 1.5


def shoot(page: Browser, name: str, element: str | None = None, height: int = HEIGHT, above: int = 0) -> None:
    """Save the screen, with an element at its top if one is named. Heights depend on that of the screen."""
    size = {"width": WIDTH, "height": height, "deviceScaleFactor": SHARPNESS, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    # Two frames later everything that was asked for is painted.
    settled = "setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(arguments[0])), 900)"
    page.do("sglangReport.place()").driver.execute_async_script(settled)
    if element is not None:
        at(page, element, above)
        page.driver.execute_async_script(settled)
    picture = page.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    (IMAGES / f"{name}.png").write_bytes(base64.b64decode(picture))


def at(page: Browser, element: str, above: int = 0) -> None:
    """Bring an element to the top of the screen."""
    page.do(
        "document.getElementById(arguments[0]).scrollIntoView({behavior: 'instant'});"
        "scrollBy({top: -arguments[1], behavior: 'instant'})",
        element,
        above,
    )


def theme(page: Browser, dark: bool) -> None:
    """Choose light or dark."""
    page.do(f"sglangReport.setTheme('{'dark' if dark else 'light'}')").draw_all()


def story(page: Browser, report: Path) -> None:
    """Picture the run with the plateau."""
    page.open(report)
    theme(page, dark=False)
    shoot(page, "report")
    theme(page, dark=True)
    shoot(page, "report-dark", "steps")
    theme(page, dark=False)
    page.do("const line = sglangReport.timeline; line.pinned = true; sglangReport.setCursor(100)")
    shoot(page, "timeline", "timeline", 1180)
    page.do("sglangReport.go({request: sglangReport.facts.slowest[0].request_id})")
    shoot(page, "request", "inspector", 760, above=20)
    for slider, value in (("max_tokens", 2), ("oversample", 1)):
        page.choose(f"whatif-{slider}", value)
    shoot(page, "whatif", "whatif", 640)


def rollout(page: Browser, report: Path) -> None:
    """Picture the real rollout."""
    page.open(report, "#timeline&step=1")
    page.choose("icicle-by", "without_nested_sec")
    shoot(page, "icicle", "events", 610)
    theme(page, dark=True)
    page.choose("t-rows", "18")
    page.do("const line = sglangReport.timeline; line.pinned = true; sglangReport.setCursor(0.47)")
    shoot(page, "timeline-demo", "timeline", 1000)


def two_runs(page: Browser, folder: Path) -> None:
    """Picture a report of two made-up runs; the engines of the second are slower."""
    shape: dict[str, Any] = {"steps": 12, "workers": 4, "requests": 48}
    slower = [SlowEngine(step, worker, factor=2.0) for step in range(1, 13) for worker in range(4)]
    runs = [
        synthetic_run(folder / "before", **shape, seed=3),
        synthetic_run(folder / "after", **shape, seed=4, causes=slower),
    ]
    report = folder / "both.html"
    main(["report", *map(str, runs), "-o", str(report)])
    page.open(report)
    theme(page, dark=False)
    shoot(page, "report-two-runs", height=1000)


def live(page: Browser, folder: Path) -> None:
    """Picture the page of `watch --listen`: a made-up step in which a tool of worker 3 does not return."""
    run = LiveRun(synthetic_run(folder / "live", steps=6, workers=4, requests=24))
    hanging(run, "4-3-017")
    for worker in (1, 2):
        file = run.open(7, worker)
        for number in range(24):
            file.request(f"r{number}", time_sec=48, duration_sec=20 + number, tokens=400)
        file.open_now(50, {}, [], barrier_wait_duration=1)
    with served(run.folder, with_done=True) as (server, _):
        page.driver.get(server.url)
        page.until("document.getElementById('fresh').innerText !== ''")
        size = {"width": WIDTH - 200, "height": HEIGHT, "deviceScaleFactor": SHARPNESS, "mobile": False}
        page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        picture = page.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
        (IMAGES / "live-page.png").write_bytes(base64.b64decode(picture))


def run() -> None:
    """Make the runs, their reports and the pictures."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, browser(Path(scratch)) as page:
        os.chdir(scratch)  # so that the pictures show a path as people see it
        logs = Path("logs", "gsm8k_600")
        write(logs)
        for folder, picture in ((logs, story), (DEMO, rollout)):
            report = Path(scratch, f"{folder.name}.html")
            main(["report", str(folder), "-o", str(report)])
            picture(page, report)
        two_runs(page, Path("logs"))
        complaints = page.complaints()
        live(page, Path("logs"))
    if complaints:
        raise SystemExit(f"the page complained: {complaints}")


if __name__ == "__main__":
    run()
