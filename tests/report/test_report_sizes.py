"""The report can be read at every size: charts keep to their cards, and the accused worker is in view."""

import shlex

import pytest
from axe import axe_source, violations
from browser import browser

from sglang_instrument.cli.main import main
from sglang_instrument.testing import Plateau, synthetic_run

ACCUSED = 40
WIDTHS = (1280, 390)
#: Charts whose drawing is larger than their place: it would cover the next card.
TOO_LARGE = """
[...document.querySelectorAll('.chart')].filter(place => {
    const edges = place.getBoundingClientRect();
    const beyond = drawn => drawn.bottom > edges.bottom + 1 || drawn.right > edges.right + 1;
    return [...place.querySelectorAll('svg')].some(drawn => beyond(drawn.getBoundingClientRect()));
}).map(place => place.id)
"""
#: Labels of steps that are turned, as they have no room side by side.
TURNED = """
[...document.querySelectorAll('#chart-steps .xtick text')]
    .filter(label => /rotate[(][^0]/.test(label.getAttribute('transform'))).map(label => label.textContent)
"""
TABLE = """
(table => [table.tBodies[0].rows.length, table.parentElement.clientHeight, table.clientHeight,
    table.parentElement.tabIndex])(document.getElementById(arguments[0]))
"""
IN_VIEW = """
(() => {
    const {placed, view, accused} = sglangReport.timeline;
    const band = placed.items.find(one => one.kind === 'band' && one.worker === accused);
    const [top, bottom] = [view.top, view.top + document.getElementById('t-canvas').clientHeight];
    return [accused, top <= band.y && band.y + band.high <= bottom, top > 0];
})()
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Write reports of one worker, of 48 of which one is slow, and of 130 steps, in a folder with a space."""
    folder = tmp_path_factory.mktemp("it's my")
    slow = Plateau(2, ACCUSED, start_sec=2.0, end_sec=200.0, requests=3)
    runs = {
        "one": synthetic_run(folder / "one", steps=2, workers=1, requests=3),
        "wide": synthetic_run(folder / "wide", steps=7, workers=48, requests=3, seed=2, causes=[slow]),
        "long": synthetic_run(folder / "long", steps=130, workers=2, requests=1),
    }
    for name, run in runs.items():
        assert main(["report", str(run), "-o", str(folder / f"{name}.html")]) == 0
    return folder


def look(page, width, theme="light"):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.do(f"sglangReport.setTheme('{theme}')").draw_all()


@pytest.mark.parametrize("name", ["one", "wide", "long"])
@pytest.mark.parametrize("width", WIDTHS)
def test_no_chart_is_larger_than_its_place(page, reports, name, width):
    look(page.open(reports / f"{name}.html"), width)
    assert page.js(TOO_LARGE) == []
    assert page.js("document.documentElement.scrollWidth") <= width
    assert page.js(TURNED) == []
    assert page.complaints() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_no_violation_in_a_report_of_many_workers(page, reports, theme, width):
    source = axe_source()
    look(page.open(reports / "wide.html"), width, theme)
    assert violations(page, source) == []


def test_the_timeline_opens_at_the_accused_worker(page, reports):
    look(page.open(reports / "wide.html"), 1280)
    assert page.js("sglangReport.state.step") == "2"
    assert page.js(IN_VIEW) == [ACCUSED, True, True]
    assert f"the verdict names worker {ACCUSED}" in page.text("t-note")
    look(page.open(reports / "one.html"), 1280)
    assert page.js("sglangReport.timeline.accused") is None


def test_tables_of_many_workers_name_all_of_them_and_scroll_in_their_card(page, reports):
    look(page.open(reports / "wide.html"), 1280)
    for table in ("percentiles", "blame"):
        rows, high, whole, reached = page.js(TABLE, table)
        assert rows >= 48, table
        assert high < whole, table
        assert reached == 0, table


def test_one_worker_waits_for_nobody(page, reports):
    look(page.open(reports / "one.html"), 1280)
    assert page.text("chart-heat") == "The run has one worker, which waits for nobody."
    assert page.js("document.getElementById('blame')") is None


def test_the_command_that_adds_a_timeline_can_be_pasted(page, reports, tmp_path, capsys):
    page.open(reports / "long.html")
    command = page.js("document.querySelector('#steps-note code').textContent")
    program, *words = shlex.split(command)
    assert program == "sglang-instrument"
    step = words[words.index("--step") + 1]
    assert page.js(f"sglangReport.full('{step}')") is False
    assert main(words) == 0
    assert f"step {step}" in capsys.readouterr().out.replace(",", " ")
    page.open(reports / "long.html")
    assert page.js(f"sglangReport.full('{step}')") is True


def test_the_commands_in_the_head_of_a_report_can_be_pasted(page, reports, capsys):
    page.open(reports / "wide.html")
    commands = page.js("[...document.querySelectorAll('#verdict code')].map(one => one.textContent)")
    assert commands
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "sglang-instrument"
        assert main(words) == 0
        assert capsys.readouterr().out
