"""The live page refreshes itself, can be used by everybody, and loads nothing from elsewhere."""

import json
import os

import pytest
from axe import axe_source, violations
from browser import browser
from live_served import get, hanging, read_on, served
from live_writer import LiveRun

from sglang_instrument.testing import SlowEngine, synthetic_run

HEADLINE = "document.getElementById('headline').innerText"
#: Let the page look every 50 ms whether to refresh itself, and count the looks.
QUICKLY = """
window.rounds = 0;
const later = window.setTimeout;
window.setTimeout = action => later(() => { window.rounds += 1; action(); }, 50);
"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def run(tmp_path):
    """Return a run with a step that hangs."""
    run = LiveRun(tmp_path / "exp")
    hanging(run)
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Serve a run with three finished steps and one that hangs."""
    slow = SlowEngine(3, 1, factor=9)
    logs = synthetic_run(
        tmp_path_factory.mktemp("logs") / "exp", steps=3, workers=4, requests=6, causes=[slow]
    )
    hanging(LiveRun(logs))
    with served(logs, with_done=True) as (server, _):
        yield server


def look(page, theme, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": theme}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_no_violation(opened, whole, theme, width):
    source = axe_source()
    look(opened, theme, width)
    opened.driver.get(whole.url)
    assert "step 7" in opened.js(HEADLINE)
    assert violations(opened, source) == []
    assert opened.js("document.documentElement.scrollWidth") <= width
    paper = opened.js("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(255, 255, 255)" if theme == "light" else "rgb(13, 17, 23)")


def wait_for_rounds(page, rounds):
    """Wait until the page has looked so many times whether to refresh itself."""
    page.until(f"rounds >= {page.js('rounds')} + {rounds}")


def test_it_refreshes_itself_and_can_be_paused(opened, run):
    opened.driver.get_log("browser")  # of earlier tests
    with served(run.folder) as (server, follower):
        opened.driver.get(server.url)
        opened.do(QUICKLY)
        run.open(8, 0).request("b", time_sec=60, duration_sec=1)
        read_on(follower)
        opened.until(f"{HEADLINE}.includes('step 8')")
        assert "step 8" in opened.driver.title
        opened.do("document.getElementById('pause').click()")
        wait_for_rounds(opened, 2)  # an answer may have been on its way
        run.open(9, 0).request("b", time_sec=70, duration_sec=1)
        read_on(follower)
        wait_for_rounds(opened, 3)
        assert "step 8" in opened.js(HEADLINE)
        opened.do("document.getElementById('pause').click()")
        opened.until(f"{HEADLINE}.includes('step 9')")
        assert [entry["message"] for entry in opened.driver.get_log("browser")] == []
    opened.until("document.getElementById('fresh').innerText.includes('no answer since')")


def test_the_names_in_logs_are_text(opened, run):
    with served(run.folder) as (server, _):
        opened.driver.get(server.url)
        assert "<script>alert(1)</script>" in opened.text("requests")
        assert opened.js("document.querySelectorAll('main script').length") == 0


BARS = """
[...document.querySelectorAll('.bars g')].map(bar => [bar.querySelector('title').textContent,
    [...bar.querySelectorAll('rect')].reduce((sum, part) => sum + part.getBBox().height, 0)])
"""
RUNS = (
    "[...document.querySelectorAll('#runs tr')].map(row => [...row.children].map(cell => cell.textContent))"
)


def test_the_last_steps_are_a_chart_whose_bars_are_as_high_as_their_steps(opened, whole):
    look(opened, "light", 1280)
    opened.driver.get_log("browser")  # of earlier tests
    opened.driver.get(whole.url)
    done = json.loads(get(whole, "/api/now")[2])["done"]
    sums = [sum(step["ledger"].values()) for step in done]
    bars = opened.js(BARS)
    assert [title.partition(":")[0] for title, _ in bars] == [f"step {step['step']}" for step in done]
    assert [high for _, high in bars] == pytest.approx([100 * sec / max(sums) for sec in sums], abs=0.5)
    sentence = opened.js("document.querySelector('.bars').getAttribute('aria-label')")
    assert sentence.startswith(f"The last {len(done)} steps, each until the next began")
    assert f"(step {done[sums.index(max(sums))]['step']})" in sentence
    assert (
        opened.js("getComputedStyle(document.querySelector('.bars .part-engine')).fill") == "rgb(0, 114, 178)"
    )
    assert "engine" in opened.text("chart").splitlines()
    assert opened.driver.get_log("browser") == []


def test_the_runs_of_the_folder_are_listed_and_the_one_on_the_page_is_named(opened, run, tmp_path):
    older = synthetic_run(tmp_path / "older", steps=2, workers=1, requests=1)
    for path in [older, *older.rglob("*")]:
        os.utime(path, (1, 1))
    (tmp_path / "notes").mkdir()
    for logs in (tmp_path, run.folder):  # the folder of runs, or a run in it
        with served(logs) as (server, _):
            opened.driver.get(server.url)
            assert [row[:3] for row in opened.js(RUNS)] == [["exp", "this page", "7"], ["older", "", "2"]]
            runs = json.loads(get(server, "/api/now")[2])["runs"]
            assert [(beside["name"], beside["is_followed"]) for beside in runs] == [
                ("exp", True),
                ("older", False),
            ]


def test_a_table_without_rows_is_not_shown(opened, tmp_path):
    with served(tmp_path / "none") as (server, _):
        opened.driver.get(server.url)
        assert "no such folder yet" in opened.js(HEADLINE)
        shown = "[...document.querySelectorAll('table')].filter(one => one.offsetParent !== null).length"
        assert opened.js(shown) == 0
