"""The timeline agrees with the log, zooms, filters, sorts, finds requests, and shows what ran at a time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from browser import Browser, browser

from sglang_instrument.analysis import open_run, waterfall
from sglang_instrument.cli.main import main
from sglang_instrument.testing import synthetic_run

STEP = 3
LINE = "sglangReport.timeline"


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs") / "exp"
    return synthetic_run(folder, steps=3, workers=3, requests=20, seed=5, clock_skew={1: 40.0})


@pytest.fixture(scope="module")
def spans(logs: Path) -> pl.DataFrame:
    return open_run(logs).read_spans(step=STEP)


@pytest.fixture(scope="module")
def opened(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    out = tmp_path_factory.mktemp("report") / "exp.html"
    assert main(["report", str(logs), "-o", str(out)]) == 0
    with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page.open(out, "#timeline")


@pytest.fixture
def page(opened: Browser) -> Browser:
    """The report at its third step, without a selection, with the timeline on the screen."""
    opened.do(f"location.hash = '#timeline&step={STEP}'")
    opened.until(f"{LINE}.model !== null && {LINE}.model.key === '{STEP}'")
    opened.do(f"document.getElementById('t-reset').click(); {LINE}.told = null; sglangReport.repaint()")
    return opened.until(f"{LINE}.told !== null && {LINE}.selected === null")


def rows_shown(page: Browser) -> list[dict[str, Any]]:
    return page.js(f"{LINE}.placed.items.filter(one => one.kind === 'request').map(one => one.row)")  # type: ignore[no-any-return]


def press(page: Browser, key: str) -> None:
    event = "new KeyboardEvent('keydown', {key: arguments[0]})"
    page.do(f"document.getElementById('t-canvas').dispatchEvent({event})", key)


def test_every_span_of_the_step_is_in_it_and_lasts_as_long_as_in_the_log(
    page: Browser, spans: pl.DataFrame
) -> None:
    model = page.js(
        f"(model => {{ const sec = ticks => [...ticks].reduce((a, b) => a + b, 0) * model.tick_sec;"
        f" return {{total: model.total, sec: sec(model.ticks), self: sec(model.self)}}; }})({LINE}.model)"
    )
    assert model["total"] == len(spans)
    assert model["sec"] == pytest.approx(spans["duration_sec"].sum(), rel=1e-3)
    assert model["self"] == pytest.approx(spans["without_nested_sec"].sum(), rel=1e-3)


def test_hosts_whose_clocks_differ_are_aligned(page: Browser) -> None:
    begun = page.js(f"{LINE}.model.rows.filter(one => one.request === null).map(one => one.from)")
    assert max(begun) - min(begun) < 1.0
    assert "clocks of hosts are aligned" in page.text("t-note")


def test_it_zooms_and_pans_by_keys_and_never_leaves_the_step(page: Browser) -> None:
    whole = page.js(f"{LINE}.model.extent_sec")
    for key in "++":
        press(page, key)
    near = page.js(f"{LINE}.view")
    assert near["to"] - near["from"] == pytest.approx(whole * 0.49, rel=0.05)
    for _ in range(60):
        press(page, "ArrowRight")
    far = page.js(f"{LINE}.view")
    assert far["to"] <= whole * 1.02
    assert far["to"] - far["from"] == pytest.approx(near["to"] - near["from"])
    press(page, "0")
    assert page.js(f"{LINE}.view.from") == 0
    assert page.js(f"{LINE}.view.to") == pytest.approx(whole)


def test_dragging_moves_and_control_with_the_wheel_zooms(page: Browser) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    canvas = page.js("document.getElementById('t-canvas')")
    page.do("document.getElementById('t-canvas').scrollIntoView({block: 'center', behavior: 'instant'})")
    page.do(
        "const canvas = document.getElementById('t-canvas'), box = canvas.getBoundingClientRect();"
        "canvas.dispatchEvent(new WheelEvent('wheel', {deltaY: -300, ctrlKey: true, cancelable: true,"
        " clientX: box.left + 500, clientY: box.top + 100}));"
    )
    before = page.js(f"{LINE}.view")
    assert before["to"] - before["from"] < page.js(f"{LINE}.model.extent_sec") * 0.95
    ActionChains(page.driver).move_to_element(canvas).click_and_hold().move_by_offset(
        -120, 0
    ).release().perform()
    after = page.js(f"{LINE}.view")
    assert after["from"] > before["from"]
    assert after["to"] - after["from"] == pytest.approx(before["to"] - before["from"])


def test_an_event_that_holds_others_is_visible_when_only_it_is_kept(page: Browser) -> None:
    pixels = f"{LINE}.told = null; sglangReport.repaint()"
    coloured = f"new Set({LINE}.pixels).has({LINE}.inks.full[sglangReport.facts.phases.indexOf('tool')])"
    index = page.js(f"{LINE}.model.events.indexOf('tool_calling_state')")
    page.choose("t-event", index).do(pixels).until(f"{LINE}.told !== null && {LINE}.told.dimmed > 0")
    bands = f"{LINE}.placed.items = {LINE}.placed.items.filter(one => one.kind === 'request')"
    page.do(f"{bands}; {pixels}").until(f"{LINE}.told !== null")
    assert page.js(coloured)


def test_filters_keep_the_requests_with_such_a_span(page: Browser, spans: pl.DataFrame) -> None:
    page.choose("t-worker", "1")
    assert {row["worker"] for row in rows_shown(page)} == {1}
    page.choose("t-worker", "")
    page.choose("t-event", page.js(f"{LINE}.model.events.indexOf('tool_call')"))
    page.choose("t-least", "0.2")
    long_tools = spans.filter(
        (pl.col("event").cast(pl.String) == "tool_call") & (pl.col("duration_sec") >= 0.2)
    )
    assert {row["request"] for row in rows_shown(page)} == set(long_tools["request_id"])
    page.until(f"{LINE}.told.dimmed > 0")
    page.do("document.getElementById('t-reset').click()")
    assert len(rows_shown(page)) == 60


@pytest.mark.parametrize("by", ["duration", "from", "turns", "reward", "tokens"])
def test_rows_are_sorted_within_their_worker(page: Browser, by: str) -> None:
    page.choose("t-sort", by)
    values = [row[by] for row in rows_shown(page) if row["worker"] == 2]
    assert len(values) == 20
    assert values == sorted(values, reverse=by != "from")


def test_a_request_is_found_by_a_part_of_its_id_and_shows_its_events(
    page: Browser, logs: Path, spans: pl.DataFrame
) -> None:
    request = (
        open_run(logs).digest.requests.filter(step=STEP, worker=2).sort("duration_sec")["request_id"][-1]
    )
    page.choose("t-search", request[-9:].upper())
    assert [row["request"] for row in rows_shown(page)] == [request]
    page.until("document.getElementById('t-found').innerText === '1 request'")
    page.do("document.getElementById('t-search').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}))")
    page.until("!document.getElementById('inspector').hidden")
    events = page.js(
        f"sglangReport.eventsOf({LINE}.model, {LINE}.selected)"
        ".map(one => [one.event, one.start_sec, one.duration_sec])"
    )
    expected = waterfall(spans, request)
    assert sorted(event[0] for event in events) == sorted(expected["event"])
    assert sum(event[2] for event in events) == pytest.approx(expected["duration_sec"].sum(), abs=1e-3)
    assert "turn_engine_call" in page.text("inspector")
    assert page.js("location.hash") == f"#timeline&step={STEP}&request={request}"


def test_a_link_to_a_request_survives_a_reload(page: Browser, logs: Path) -> None:
    request = open_run(logs).digest.requests.filter(step=2, worker=0)["request_id"][0]
    page.do("location.hash = arguments[0]", f"#step=2&request={request}")
    page.until(f"{LINE}.selected !== null && {LINE}.selected.request === {request!r}")
    page.reload()
    assert page.js(f"{LINE}.selected.request") == request
    assert page.js("document.getElementById('step-picker').value") == "2"
    assert request in page.text("inspector")


def test_the_cursor_shows_what_ran_at_its_time(page: Browser, spans: pl.DataFrame) -> None:
    origin = page.js(f"{LINE}.model.begun_us")
    mine = spans.filter(worker=2)  # the clock of worker 2 is the median clock
    at_sec = page.js(f"{LINE}.model.extent_sec") * 0.3
    at_us = origin + at_sec * 1e6
    page.do(f"{LINE}.filter.worker = 2; sglangReport.setCursor(arguments[0])", at_sec)
    moment = page.js(
        f"(model => {{ model.rows = model.rows.filter(row => row.worker === 2);"
        f" return sglangReport.momentOf(model, {at_sec}); }})({{...{LINE}.model}})"
    )
    requests = mine.filter(pl.col("event").cast(pl.String) == "async_rollout_request_complete")
    going = (pl.col("start_us") <= at_us) & (pl.col("end_us") > at_us)
    calls = mine.filter((pl.col("event").cast(pl.String) == "turn_engine_call") & going)
    assert moment["running"] == len(requests.filter(going))
    assert moment["done"] == len(requests.filter(pl.col("end_us") <= at_us))
    assert moment["before"] == len(requests.filter(pl.col("start_us") > at_us))
    assert moment["calls"] == len(calls)
    page.until("document.querySelector('[data-moment=running]') !== null")
    shown = {
        name: int(page.js("document.querySelector(`[data-moment=${arguments[0]}]`).innerText", name))
        for name in ("before", "running", "done")
    }
    assert sum(shown.values()) == 60


def test_the_workers_at_the_barrier_are_named(page: Browser, spans: pl.DataFrame) -> None:
    waits = spans.filter(pl.col("event").cast(pl.String) == "barrier_wait_duration")
    first = waits.sort("duration_sec")["worker"][-1]
    last = waits.sort("duration_sec")["worker"][0]
    end = page.js(
        f"{LINE}.model.rows.find(one => one.request === null && one.worker === arguments[0]).to", int(last)
    )
    barrier = page.js(f"sglangReport.momentOf({LINE}.model, arguments[0] - 0.2).barrier", end)
    assert first in barrier
    assert last not in barrier


def test_spans_thinner_than_a_pixel_are_counted(page: Browser) -> None:
    assert "thinner than a pixel" in page.text("t-note")
    assert page.js(f"{LINE}.told.spans") == page.js(f"{LINE}.model.total")


def test_the_colour_of_a_span_is_that_of_its_phase(page: Browser) -> None:
    page.choose("t-rows", "18")
    page.do(f"{LINE}.told = null; sglangReport.repaint()").until(f"{LINE}.told !== null")
    colours_are_right = page.js(
        f"(line => {{ const colours = new Set(); const seen = new Set(line.pixels);"
        f" return ['generate', 'tool', 'barrier'].map(phase =>"
        f" seen.has(sglangReport.packed(sglangReport.colour(phase)) >>> 0)); }})({LINE})"
    )
    assert colours_are_right == [True, True, True]


def test_the_browser_console_has_no_errors(page: Browser) -> None:
    assert page.complaints() == []
    assert page.requests() == []
