"""The notebook of the docs runs; a run answers in a notebook with a card, tables, figures and the report."""

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from browser import browser
from documented import ROOT

from sglang_instrument.analysis import (
    NotebookRun,
    findings_of,
    open_run,
    request_table,
    step_windows,
    verdict_of,
)
from sglang_instrument.errors import InstrumentError, LogError
from sglang_instrument.testing import SlowTools, synthetic_run

NOTEBOOK = ROOT / "docs/how-to/read-a-run.ipynb"
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
book = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(book, timeout=600, startup_timeout=600, kernel_name="python3").execute()
nbformat.write(book, sys.argv[2])
"""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs") / "<b>&run"
    slow = SlowTools(3, 1, seconds=9.0)
    return synthetic_run(folder, steps=4, workers=2, requests=8, validate_every=4, causes=[slow])


@pytest.fixture
def run(logs: Path) -> NotebookRun:
    return open_run(logs)


def test_the_notebook_of_the_docs_runs_and_shows_a_card_tables_figures_and_the_report(tmp_path: Path) -> None:
    done = tmp_path / "done.ipynb"
    command = [sys.executable, "-W", "ignore", "-c", EXECUTE, str(NOTEBOOK), str(done)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    cells = [cell for cell in json.loads(done.read_text())["cells"] if cell["cell_type"] == "code"]
    shown = {
        "".join(cell["source"]).splitlines()[-1]: cell["outputs"][-1]["data"]
        for cell in cells
        if cell["outputs"]
    }
    (findings,) = [data for cell, data in shown.items() if "run.findings" in cell]
    assert "".join(findings["text/plain"]).startswith("[('tool',")
    assert "".join(shown["run"]["text/plain"]).startswith("logs/made_up: 6 steps, 2 workers, 288 requests\n")
    assert "verdict</b>: step 4: worker 1 took" in "".join(shown["run"]["text/html"])
    assert "times the tool time per turn" in "".join(shown["run"]["text/html"])
    assert all(
        "<table" in "".join(shown[cell]["text/html"]) for cell in ("run.summary()", "turn_table(run.digest)")
    )
    assert all("image/png" in data for cell, data in shown.items() if cell.startswith("run.plot("))
    assert "<iframe" in "".join(shown["report"]["text/html"])


def test_the_notebook_is_stored_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


def test_a_run_shows_a_short_card_with_its_verdict(run: NotebookRun, logs: Path) -> None:
    assert repr(run).splitlines()[0] == f"{logs}: 4 steps, 2 workers, 64 requests"
    assert findings_of(run)[0].sentence in repr(run)
    assert len(repr(run)) < 1_500
    assert "<b>&run" not in run._repr_html_()
    assert "&lt;b&gt;&amp;run" in run._repr_html_()


def test_the_summary_has_a_row_per_step_whose_parts_add_up_to_the_wall_time(run: NotebookRun) -> None:
    summary = run.summary()
    assert summary["step"].to_list() == [1, 2, 3, 4]
    spent = ("engine", "tool", "interaction", "reward", "between_steps", "other")
    assert summary.select(pl.sum_horizontal(f"{part}_sec" for part in spent)).to_series().to_list() == (
        pytest.approx(summary["to_next_step_sec"].to_list())
    )
    windows = step_windows(run.digest).filter(~pl.col("validate"))
    assert summary["to_next_step_sec"].to_list() == pytest.approx(windows["to_next_step_sec"].to_list())
    assert summary.row(2, named=True)["tool_sec"] > 9
    assert run.summary(validate=True)["step"].to_list() == [4]


def test_requests_are_the_slowest_first_of_the_step_and_worker_asked_for(run: NotebookRun) -> None:
    mine = run.requests(step=3, worker=1)
    expected = request_table(run.everything).filter(step=3, worker=1, validate=False)
    assert mine["request_id"].to_list() == expected["request_id"].to_list()
    assert mine.columns[:4] == ["request_id", "step", "worker", "duration_sec"]
    assert len(run.requests()) == 64
    assert run.requests(validate=True).is_empty()  # validations of a made-up run have none


def test_workers_turns_and_events_are_of_the_step_asked_for_and_training_is_the_default(
    run: NotebookRun,
) -> None:
    mine = run.workers(step=3)
    assert mine["worker"].to_list() == [0, 1]
    assert mine.filter(worker=1)["caused_wait_sec"].item() == pytest.approx(mine["wait_sec"].max(), abs=0.1)
    assert run.workers()["step"].unique().sort().to_list() == [1, 2, 3, 4]
    assert run.workers(validate=True)["step"].to_list() == [4, 4]
    turns = run.turns(step=3, worker=1)
    assert turns["turn"].min() == 0
    assert len(turns) == run.requests(step=3, worker=1)["turns"].sum()
    assert turns["tool_sec"].sum() == pytest.approx(run.requests(step=3, worker=1)["tool_sec"].sum())
    events = run.events(step=3, worker=1)
    of_requests = events.filter(event="async_rollout_request_complete")["total_sec"].item()
    assert of_requests == pytest.approx(run.requests(step=3, worker=1)["duration_sec"].sum(), abs=1e-3)
    assert run.events().equals(run.table("events"))


def test_the_verdict_and_its_findings_are_those_of_the_command(run: NotebookRun) -> None:
    assert run.findings == findings_of(run)
    assert run.verdict == verdict_of(run)


@pytest.mark.parametrize("question", ["requests", "turns", "workers", "events", "plot"])
def test_an_impossible_step_is_an_error_that_names_the_nearest(run: NotebookRun, question: str) -> None:
    with pytest.raises(LogError, match=r"no step 99; there are 4, the nearest: 2, 3, 4"):
        getattr(run, question)(step=99)


@pytest.mark.parametrize("question", ["requests", "turns", "events", "plot"])
def test_an_impossible_worker_is_an_error(run: NotebookRun, question: str) -> None:
    with pytest.raises(LogError, match=r"no worker 7; there are 2, the nearest: 0, 1"):
        getattr(run, question)(step=3, worker=7)


def test_a_figure_is_shown_without_a_setting_of_the_notebook(run: NotebookRun) -> None:
    figure = run.plot("slowest", step=3, limit=5)
    assert len(figure.axes[0].get_yticks()) == 5
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


def test_a_figure_that_cannot_be_drawn_is_an_error_that_says_why(run: NotebookRun) -> None:
    with pytest.raises(InstrumentError, match="no figure 'cfd'; the figures are: overview, shares"):
        run.plot("cfd")
    with pytest.raises(LogError, match="nothing to draw: no request has ended yet"):
        run.plot("cdf-workers", step=4, validate=True)


def test_the_links_of_the_inline_report_stay_in_the_report(run: NotebookRun, tmp_path: Path) -> None:
    page = tmp_path / "notebook.html"
    report = run.report(steps=[3])
    page.write_text(f"<!doctype html><meta charset=utf-8>{report._repr_html_()}")
    assert report.save(tmp_path / "report.html").read_text() == report.html
    with browser(tmp_path) as opened:
        opened.driver.get(page.as_uri())
        opened.driver.switch_to.frame(opened.driver.find_element("tag name", "iframe"))
        opened.ready()
        opened.do("document.querySelector('a[href=\"#steps\"]').click()")
        opened.until("location.href === 'about:srcdoc#steps'")
        assert opened.complaints() == []
