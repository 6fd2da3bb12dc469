"""A report of two runs shows both: what their comparison concludes, their verdicts, findings and lines."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, browser

from sglang_instrument.analysis import compare_runs, findings_of, open_run, verdict_of
from sglang_instrument.analysis.changes.conclusion import conclusion_of
from sglang_instrument.cli.main import main
from sglang_instrument.report.figures.drawing import FIGURES, choose
from sglang_instrument.testing import SlowEngine, SlowReward, synthetic_run

Runs = tuple[Path, Path]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("logs")
    shape: dict[str, Any] = {"steps": 5, "workers": 3, "requests": 12}
    both = [SlowEngine(2, 1, factor=6.0)]
    slower = [*both, *(SlowReward(step, 0, seconds=30.0) for step in range(1, 6))]
    first = synthetic_run(folder / "main", **shape, seed=3, causes=both)
    return first, synthetic_run(folder / "branch", **shape, seed=4, causes=slower)


@pytest.fixture(scope="module")
def opened(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    out = tmp_path_factory.mktemp("report") / "both.html"
    assert main(["report", *map(str, runs), "-o", str(out)]) == 0
    with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page.open(out).draw_all()


def resize(page: Browser, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def test_the_report_says_what_compare_concludes(opened: Browser, runs: Runs) -> None:
    concluded = conclusion_of(compare_runs(*map(open_run, runs)))
    shown = opened.text("compare")
    assert concluded.sentence in shown
    assert concluded.basis in shown
    assert all(point in shown for point in concluded.points)
    assert "B" in concluded.sentence


def test_headline_and_findings_of_both_are_shown_with_their_costs(opened: Browser, runs: Runs) -> None:
    for mark, folder in zip("AB", runs, strict=True):
        run = open_run(folder)
        shown = opened.js(f"document.querySelector('[aria-labelledby=run-{mark}]').innerText")
        assert verdict_of(run).casefold() in shown.casefold()
        findings = findings_of(run)[:9]
        assert findings
        assert all(finding.sentence in shown for finding in findings)
        costs = f"[...document.querySelectorAll('[aria-labelledby=run-{mark}] .costs b')]"
        expected = [
            opened.js("sglangReport.seconds(arguments[0])", cost) if cost else "\u2013"
            for cost in (finding.lost_sec for finding in findings)
        ]
        assert opened.js(f"{costs}.map(one => one.innerText)") == expected
        assert f"only in {mark}" in shown or mark == "A"
        for number in ("Median step", "p99 of requests", "Tokens a second"):
            assert number in shown


def test_two_runs_lie_side_by_side_and_stack_on_a_narrow_screen(opened: Browser) -> None:
    rows = "[...document.querySelectorAll('.runs > article')].map(one => one.children[{}])"
    tops = rows + ".map(one => Math.round(one.getBoundingClientRect().top))"
    resize(opened, 1280)
    for row in range(4):
        a, b = opened.js(tops.format(row))
        assert a == b
    resize(opened, 390)
    a, b = opened.js(tops.format(0))
    assert b > a + 300
    opened.until("document.documentElement.scrollWidth <= 390")  # charts are drawn anew


def test_charts_of_both_runs_name_them_with_date_and_line(opened: Browser, runs: Runs) -> None:
    for chart, legend, marks in (
        ("chart-steps", "phase-legend", ("bars", "dashed line")),
        ("chart-cdf", "cdf-legend", ("solid line", "dashed line")),
    ):
        shown = opened.text(legend)
        for mark, folder, drawn in zip("AB", runs, marks, strict=True):
            assert f"{mark}: {folder.name}, 2026-01-05 08:00 UTC ({drawn})" in shown
        lines = f"document.getElementById('{chart}').data.filter(one => one.name?.startsWith('B'))"
        assert opened.js(f"{lines}.map(one => one.line.dash)") == ["dash"]
        drawn_in = opened.js(f"{lines}[0].line.color")
        assert drawn_in == opened.js("sglangReport.ink('run-b')")
        swatch = f"getComputedStyle(document.querySelector('#{legend} .line.b'))"
        assert opened.js(f"{swatch}.borderTopStyle") == "dashed"


def test_the_table_of_metrics_has_units_and_intervals(opened: Browser, runs: Runs) -> None:
    compared = compare_runs(*map(open_run, runs)).table.to_dicts()
    rows = "[...document.querySelectorAll('#comparison tbody tr')]"
    cells = opened.js(f"{rows}.map(one => [...one.cells].map(cell => cell.innerText))")
    assert [row[0] for row in cells] == [metric["metric"] for metric in compared]
    duration = next(row for row in cells if row[0] == "duration")
    assert duration[1] == "a step"
    assert duration[2].endswith(" s")
    assert opened.complaints() == []


@pytest.mark.parametrize("first", [True, False])
def test_a_run_without_a_step_compares_nothing(
    opened: Browser, runs: Runs, tmp_path: Path, first: bool
) -> None:
    empty = synthetic_run(tmp_path / "empty", steps=1, workers=1, requests=1)
    for path in empty.glob("step_*/*.jsonl"):
        path.write_text(path.read_text().splitlines(keepends=True)[0])
    out = tmp_path / "both.html"
    both = (empty, runs[0]) if first else (runs[0], empty)
    assert main(["report", *map(str, both), "-o", str(out)]) == 0
    opened.open(out).draw_all()
    assert "Nothing is compared" in opened.text("compare")
    assert "No training step is complete yet" in opened.text("verdict")
    assert opened.complaints() == []


def test_the_figure_of_two_runs_names_both(runs: Runs) -> None:
    first, other = map(open_run, runs)
    [axes] = FIGURES["cdf"](choose(first, other=other)).axes
    styles = {line.get_label(): line.get_linestyle() for line in axes.lines}
    assert styles["A: main, 2026-01-05 08:00 UTC"] == "-"
    assert styles["B: branch, 2026-01-05 08:00 UTC"] == "--"


def test_runs_of_one_name_are_named_by_their_folders(runs: Runs, tmp_path: Path) -> None:
    same = synthetic_run(tmp_path / "main", steps=1, workers=1, requests=2)
    first, other = open_run(runs[0]), open_run(same)
    names = choose(first, other=other).names
    assert names == (f"{runs[0]}, 2026-01-05 08:00 UTC", f"{same}, 2026-01-05 08:00 UTC")
