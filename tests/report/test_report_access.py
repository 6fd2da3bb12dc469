"""Everybody can use the report: by keys, with a screen reader, on any screen, light and dark."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe import axe_source, violations
from browser import Browser, browser
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from sglang_instrument.cli.main import main
from sglang_instrument.testing import Plateau, SlowEngine, synthetic_run

LINE = "sglangReport.timeline"
WIDTHS = (1280, 1920, 390)


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    shape: dict[str, Any] = {"steps": 3, "workers": 3, "requests": 12, "first_step": 66}
    causes = [Plateau(67, 0, start_sec=12.0, end_sec=60.0, requests=5), SlowEngine(68, 1, factor=6.0)]
    logs = synthetic_run(folder / "one", **shape, seed=3, causes=causes)
    other = synthetic_run(folder / "two", **shape, seed=4, causes=[SlowEngine(67, 2, factor=8.0)])
    (logs / "processes").mkdir()
    facts = {"host": "node-7", "pid": 7, "versions": {"sglang": "0.5.9", "verl": "0.7.0"}}
    (logs / "processes" / "worker_0.json").write_text(json.dumps(facts))
    out = folder / "both.html"
    assert main(["report", str(logs), str(other), "-o", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def opened(html: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def page(opened: Browser, html: Path) -> Browser:
    return opened.open(html, "#step=67")


def resize(page: Browser, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def press(page: Browser, *keys: str) -> None:
    ActionChains(page.driver).send_keys(*keys).perform()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_no_violation(page: Browser, theme: str, width: int) -> None:
    source = axe_source()
    resize(page, width)
    page.do("sglangReport.setTheme(arguments[0])", theme).draw_all()
    opened = "document.querySelectorAll('#slowest details, details.all')"
    table = "one.querySelector('#icicle-table') !== null"
    page.do(f"{opened}.forEach((one, at) => one.open = at < 2 || {table})")
    page.until("document.getElementById('icicle-table').rows.length > 10")
    page.do("sglangReport.go({request: [...sglangReport.timeline.model.byRequest.keys()][0]})")
    page.until("!document.getElementById('inspector').hidden")
    assert violations(page, source) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_lies_beside_the_screen(page: Browser, width: int) -> None:
    resize(page, width)
    page.draw_all().do("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.js("document.documentElement.scrollWidth") <= width
    used = page.js("document.getElementById('chart-cdf').closest('section').getBoundingClientRect().width")
    assert used >= 0.75 * width
    resize(page, 1440)


def test_the_timeline_is_reached_and_used_by_keys_alone(page: Browser) -> None:
    resize(page, 1440)
    press(page, Keys.TAB, Keys.TAB)
    assert page.js("document.activeElement.innerText") == "Skip to the timeline"
    press(page, Keys.ENTER)
    page.until("document.activeElement.id === 't-canvas'")
    described = page.js("document.activeElement.getAttribute('aria-describedby')")
    boxes = "[arguments[0], 't-canvas'].map(id => document.getElementById(id).getBoundingClientRect())"
    assert page.js(f"(([help, canvas]) => help.bottom <= canvas.top)({boxes})", described)  # the page scrolls
    press(page, "n")
    page.until(f"{LINE}.selected !== null")
    first = page.js(f"{LINE}.selected.request")
    press(page, "n", "p")
    page.until(f"{LINE}.selected.request === {first!r}")
    ActionChains(page.driver).key_down(Keys.SHIFT).send_keys(Keys.ARROW_RIGHT).key_up(Keys.SHIFT).perform()
    page.until("document.querySelector('[data-moment=running]') !== null")
    page.until(f"document.getElementById('t-say').textContent.includes({first!r})")
    page.until("document.getElementById('t-say').textContent.includes(' running')")
    press(page, Keys.ENTER)
    page.until("document.activeElement.id === 'inspector'")


def test_a_single_key_acts_only_within_the_timeline(page: Browser) -> None:
    page.do("document.activeElement.blur()")
    press(page, "/")
    assert page.js("document.activeElement.id") != "t-search"
    page.do("document.getElementById('t-canvas').focus()")
    press(page, "/")
    page.until("document.activeElement.id === 't-search'")


def test_tabs_tell_which_is_chosen_and_follow_the_arrow_keys(page: Browser) -> None:
    page.draw_all().do("document.getElementById('heat-tab-arrival_sec').focus()")
    press(page, Keys.ARROW_RIGHT)
    assert page.js("document.activeElement.id") == "heat-tab-caused_wait_sec"
    chosen = "[...document.querySelectorAll('#heat-tabs [aria-selected=true]')].map(one => one.innerText)"
    assert page.js(chosen) == ["Caused wait"]
    page.until("document.getElementById('chart-heat').getAttribute('aria-label').startsWith('Caused wait')")


def test_each_chart_says_what_it_shows(page: Browser) -> None:
    page.draw_all()
    drawn = "[...document.querySelectorAll('.chart:not(.empty)')]"
    assert page.js(f"{drawn}.filter(one => !(one.ariaLabel?.length > 20)).map(one => one.id)") == []
    assert "the longest is step 68" in page.js("document.getElementById('chart-steps').ariaLabel")


def test_the_head_names_the_date_the_host_and_the_versions(page: Browser) -> None:
    head = page.text("ran")
    assert "2026-01-05 08:00 to 08:" in head
    assert "node-7" in head
    assert "sglang 0.5.9" in head
    assert "verl 0.7.0" in head


def test_every_table_sorts_by_its_values_and_exports_them(page: Browser) -> None:
    page.draw_all().do("document.querySelectorAll('details').forEach(one => one.open = true)")
    page.until("document.querySelectorAll('#slowest .waterfall').length > 3")
    page.until("document.getElementById('icicle-table').rows.length > 10")
    filled = "[...document.querySelectorAll('table')].filter(one => one.rows.length)"
    assert page.js(f"{filled}.filter(one => !one.querySelector('.sort')).map(one => one.id)") == []
    table = "document.getElementById('all-steps')"
    page.do(f"[...{table}.querySelectorAll('.sort')].find(one => one.innerText === 'time').click()")
    times = "sglangReport.facts.steps.map(one => one.duration_sec)"
    shown = page.js(f"[...{table}.tBodies[0].rows].map(one => one.cells[1].innerText)")
    said = f"(all => all.sort((a, b) => b - a).map(one => `${{one.toFixed(1)}} s`))({times})"
    assert shown == page.js(said)
    assert page.js(f"{table}.tHead.rows[0].cells[1].ariaSort") == "descending"
    page.do(f"{table}.closest('.scroll').nextElementSibling.click()")
    rows = list(csv.DictReader(io.StringIO(page.js("sglangReport.saved.text"))))
    assert [float(row["time (s)"]) for row in rows] == page.js(times)


def rows_of(page: Browser, table: int) -> list[list[str]]:
    """Return the shown cells of the columns that sort, row by row."""
    return list(
        page.js(
            "(table => { const sorts = [...table.tHead.rows[0].cells].map(one => one.querySelector('.sort'));"
            " return [...table.tBodies[0].rows].filter(row => !row.classList.contains('turn'))"
            ".map(row => [...row.cells].filter((_, at) => sorts[at]).map(one => one.textContent)); })"
            "([...document.querySelectorAll('table')].filter(one => one.rows.length)[arguments[0]])",
            table,
        )
    )


def test_each_column_of_each_table_sorts_by_what_it_exports(page: Browser) -> None:
    page.draw_all().do("document.querySelectorAll('details').forEach((one, at) => one.open = true)")
    page.until("document.getElementById('icicle-table').rows.length > 10")
    tables = "[...document.querySelectorAll('table')].filter(one => one.rows.length)"
    names = page.js(f"{tables}.map(one => one.id)")
    assert {"all-steps", "blame", "percentiles", "icicle-table", "turn-table", "comparison"} <= set(names)
    for number, name in enumerate(names):
        table = f"{tables}[{number}]"
        page.do(f"{table}.closest('.scroll').nextElementSibling.click()")
        heads, *rows = csv.reader(io.StringIO(page.js("sglangReport.saved.text")))
        first = rows_of(page, number)
        assert (len(first), len(first[0])) == (len(rows), len(heads)), name
        for column in range(len(heads)):
            page.do(f"{table}.querySelectorAll('.sort')[{column}].click()")
            shown = [row[column] for row in rows_of(page, number)]
            values = [row[column] for row in rows]
            assert sorted(shown) == sorted(row[column] for row in first), (name, heads[column])
            if all(map(is_number, filter(None, values))):
                order = sorted(range(len(rows)), key=lambda row: -float(values[row] or "-inf"))
                assert shown == [first[row][column] for row in order], (name, heads[column])


def is_number(text: str) -> bool:
    return text.replace(".", "").replace("-", "").replace("e", "").isdecimal()


def test_a_cell_that_a_spreadsheet_would_run_is_exported_as_text(page: Browser) -> None:
    line = page.js("sglangReport.csvLine(arguments[0])", ["=1+1", 'a"b', -2.5, None])
    assert line == '\'=1+1,"a""b",-2.5,\r\n'


def test_parts_have_one_name_and_one_colour_in_the_steps_and_in_the_timeline(page: Browser) -> None:
    page.draw_all()

    def legend(name: str) -> dict[str, str]:
        entries = f"[...document.querySelectorAll('#{name} span:has(> .swatch)')]"
        pairs = f"{entries}.map(one => [one.innerText, getComputedStyle(one.firstChild).backgroundColor])"
        return dict(page.js(pairs))

    steps, line, kinds = legend("phase-legend"), legend("t-legend"), legend("kind-legend")
    assert {"engine", "tool", "barrier"} <= set(steps) & set(line)
    assert all(line[name] == colour for name, colour in steps.items() if name in line)
    assert all(steps[name] == colour for name, colour in kinds.items() if name in steps)
    assert kinds["engine"] == steps["engine"]


def test_the_overview_shows_work_until_the_step_ends(page: Browser) -> None:
    page.until(f"{LINE}.overview?.image.width > 100")
    empty = page.js(
        f"(({{image, inks}}) => {{ const all = new Uint32Array(image.data.buffer); let empty = 0;"
        " for (let x = 0; x < image.width; x++) { let filled = false;"
        " for (let y = 0; y < image.height; y++) filled ||= all[y * image.width + x] !== inks.row >>> 0;"
        f" empty += !filled; }} return empty / image.width; }})({LINE}.overview)"
    )
    assert empty < 0.02


def test_no_more_spans_are_in_view_than_the_step_has(page: Browser) -> None:
    page.do(f"sglangReport.go({{request: [...{LINE}.model.byRequest.keys()][0]}})")
    page.until(f"{LINE}.selected !== null")
    page.do(f"{LINE}.told = null; sglangReport.repaint()").until(f"{LINE}.told !== null")
    assert page.js(f"{LINE}.told.spans <= {LINE}.model.total")
