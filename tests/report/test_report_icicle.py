"""The icicle of the report has the times of the log, zooms and filters by mouse and keys, and stays small."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from browser import Browser, browser
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from sglang_instrument.analysis import Run, event_table, open_run
from sglang_instrument.analysis.answers.events import path_table
from sglang_instrument.analysis.run.event_paths import SEPARATOR
from sglang_instrument.cli.main import main
from sglang_instrument.report.html import icicle as icicle_module
from sglang_instrument.report.html.chosen import Chosen
from sglang_instrument.report.html.icicle import icicle
from sglang_instrument.testing import SlowEngine, synthetic_run

STATE = "sglangReport.icicle"
SAID = "document.getElementById('icicle-say').textContent"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    shape: dict[str, Any] = {"steps": 3, "workers": 3, "requests": 8, "first_step": 66}
    slow = SlowEngine(67, 1, factor=6.0)
    return open_run(synthetic_run(tmp_path_factory.mktemp("logs") / "exp", **shape, seed=3, causes=[slow]))


@pytest.fixture(scope="module")
def opened(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("browser")
    assert main(["report", str(run.folder), "-o", str(folder / "report.html")]) == 0
    with browser(folder) as page:
        yield page.open(folder / "report.html", "#step=67")


@pytest.fixture
def page(opened: Browser) -> Browser:
    return opened.reload()


def sums_of(run: Run, event: str, step: int | None, by: str) -> float:
    """Return the time of an event with everything below it, of a step or of all."""
    table = path_table(run).filter(~pl.col("validate"))
    table = table if step is None else table.filter(step=step)
    return float(table.filter(pl.col("path").str.split(SEPARATOR).list.contains(event))[by].sum())


def box_of(page: Browser, event: str) -> Any:
    """Return the node of the longest box of an event, its time, and its width as a share of the whole."""
    return page.js(
        f"(([box, ...more]) => [box.one.node, box.one.all, box.width])"
        f"([...{STATE}.boxes.values()].filter(box => box.one.event === arguments[0])"
        ".sort((a, b) => b.width - a.width))",
        event,
    )


@pytest.mark.parametrize("by", ["steps_sec", "without_nested_sec"])
@pytest.mark.parametrize("scope", ["step", "run"])
def test_a_box_is_as_wide_as_the_time_of_its_event(page: Browser, run: Run, scope: str, by: str) -> None:
    page.choose("icicle-scope", scope).choose("icicle-by", by)
    step = 67 if scope == "step" else None
    whole = sums_of(run, "total_step_duration", step, by)
    for event in ("total_step_duration", "turn_engine_call", "barrier_wait_duration"):
        node, sec, width = box_of(page, event)
        assert sec == pytest.approx(sums_of(run, event, step, by), abs=1e-4)
        assert width == pytest.approx(sec / whole, abs=1e-4)
        pixels = page.js(
            "[arguments[0], '-1'].map(node => document.getElementById(`icicle-${node}`).offsetWidth)", node
        )
        assert pixels[0] == pytest.approx(width * pixels[1], abs=1)
    assert page.complaints() == []


def test_wall_times_are_those_of_the_command_events(page: Browser, run: Run) -> None:
    spans = run.read_spans(step=67)
    shares = dict(event_table(spans).select("event", "steps_share").iter_rows())
    wall_shares = page.js(
        f"[...{STATE}.tree.nodes.values()].map(one => [one.event, one.own / {STATE}.tree.nodes.get(-1).all])"
    )
    for event in ("engine_async_generate_actual", "tool_call", "barrier_wait_duration"):
        assert sum(share for name, share in wall_shares if name == event) == pytest.approx(
            shares[event], abs=1e-4
        )


def test_a_click_zooms_in_and_keeps_the_requests_with_the_event_in_the_timeline(page: Browser) -> None:
    node, _, _ = box_of(page, "tool_execution")
    page.do("document.querySelector(`[data-node='${arguments[0]}']`).click()", node)
    assert page.js(f"{STATE}.boxes.get(arguments[0]).width", node) == 1
    above = page.js(f"[...{STATE}.boxes.values()].filter(box => box.width === 1).map(box => box.one.event)")
    assert "async_rollout_request_complete" in above
    shown = page.js("document.getElementById('t-event').selectedOptions[0].textContent")
    assert shown == "tool_execution"
    shown_requests, of = page.js("[sglangReport.timeline.placed.requests, sglangReport.timeline.placed.of]")
    assert 0 < shown_requests < of
    page.do("document.getElementById('icicle-out').click()")
    assert page.js("[sglangReport.timeline.placed.requests, sglangReport.timeline.placed.of]") == [of, of]
    assert page.js("document.getElementById('icicle-out').disabled")


def test_keys_move_zoom_in_and_go_out_again(page: Browser) -> None:
    def press(*keys: str) -> str:
        ActionChains(page.driver).send_keys(*keys).perform()
        return str(page.js(SAID))

    page.do("document.getElementById('icicle').focus()")
    assert press(Keys.ARROW_DOWN).startswith("total_step_duration: ")
    longest = press(Keys.ARROW_DOWN)
    assert longest.startswith("barrier_wait_duration: ")
    assert "% of step 67, all workers" in longest
    assert press(Keys.ARROW_RIGHT).startswith("async_generate_duration: ")
    assert press(Keys.ARROW_LEFT) == longest
    press(Keys.ENTER)
    active = page.js("document.getElementById('icicle').getAttribute('aria-activedescendant')")
    assert page.js("document.getElementById(arguments[0]).getAttribute('aria-selected')", active) == "true"
    assert page.js(f"{STATE}.zoomed") >= 0
    assert press(Keys.BACKSPACE).startswith("total_step_duration: ")
    press("0")
    assert page.js(f"{STATE}.zoomed") == -1


def test_one_worker_is_shown_alone_and_another_step_as_a_whole(page: Browser, run: Run) -> None:
    page.choose("icicle-worker", 1)
    table = path_table(run).filter(step=67, worker=1)
    assert page.js(f"{STATE}.tree.nodes.get(-1).all") == pytest.approx(table["steps_sec"].sum(), abs=1e-4)
    assert "step 67, worker 1" in page.js(SAID)
    node, _, _ = box_of(page, "async_generate_duration")
    page.do("sglangReport.icicleZoom(arguments[0])", node)
    page.do("sglangReport.go({step: '68'})")
    page.until(f"{STATE}.zoomed === -1 && {SAID}.includes('step 68, worker 1')")
    assert page.js("document.getElementById('t-event').value") == "-1"
    page.do("sglangReport.go({step: '67'})")


def test_the_table_follows_the_zoom_and_exports_the_times(page: Browser) -> None:
    page.do("document.getElementById('icicle-table').closest('details').open = true")
    page.until("document.getElementById('icicle-table').rows.length > 10")
    node, sec, _ = box_of(page, "turn_engine_call")
    page.do("sglangReport.icicleZoom(arguments[0])", node)
    page.do("document.getElementById('icicle-table').closest('.scroll').nextElementSibling.click()")
    rows = list(csv.DictReader(io.StringIO(page.js("sglangReport.saved.text"))))
    assert [row["event"] for row in rows][:2] == ["turn_engine_call", "engine_async_generate_actual"]
    assert float(rows[0]["time (s)"]) == pytest.approx(sec)
    assert rows[1]["inside"] == "turn_engine_call"
    page.do("document.querySelectorAll('#icicle-table .plain')[1].click()")
    assert page.js(f"{STATE}.tree.nodes.get({STATE}.zoomed).above.node") == node
    assert page.js("document.activeElement.innerText") == "engine_async_generate_actual"


def test_a_run_without_a_step_has_no_paths(tmp_path: Path) -> None:
    folder = synthetic_run(tmp_path / "exp", steps=1, workers=1, requests=1)
    for path in folder.glob("step_*/*.jsonl"):
        path.write_text(path.read_text().splitlines(keepends=True)[0])
    assert icicle(path_table(open_run(folder)), [])["event"] == []


def test_many_paths_are_summed_up_and_lose_no_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(icicle_module, "_MOST_PATHS", 6)
    monkeypatch.setattr(icicle_module, "_MOST_ROWS", 40)
    table = path_table(run)
    tree = icicle(table, [Chosen(False, 67)])
    assert len(tree["event"]) <= 12
    assert "(other events)" in tree["event"]
    assert all(parent < node for node, parent in enumerate(tree["parent"]))
    whole = tree["views"]["67"][0]
    of_step = table.filter(step=67)
    for name in ("count", "total_sec", "without_nested_sec", "steps_sec"):
        assert sum(whole[name]) == pytest.approx(of_step[name].sum(), abs=1e-3)
    assert len(tree["views"]["67"]) < 4


def test_times_of_a_chart_have_one_unit_and_never_an_exponent(page: Browser) -> None:
    said = "(times => times.map(sglangReport.timesOf(times).say))(arguments[0])"
    assert page.js(said, [231.4, 0.052, 2e-06, 0]) == ["231.40 s", "0.05 s", "<0.01 s", "0.00 s"]
    assert page.js(said, [0.0123, 0.002]) == ["12.3 ms", "2.0 ms"]
    assert page.js(said, [2e-06, 3e-05]) == ["2.0 us", "30.0 us"]
    page.draw_all()
    charts = ("steps", "concurrency", "heat", "cdf", "turns", "whatif")
    shown = page.js(
        "arguments[0].flatMap(id => document.getElementById(`chart-${id}`).data)"
        ".flatMap(one => [one.hovertemplate ?? '', one.customdata ?? '', one.text ?? ''].flat(4))",
        charts,
    )
    assert not [words for words in map(str, shown) if "e-0" in words or "~g}" in words]
