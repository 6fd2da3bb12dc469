"""The rows of a long run by day and by week, counted again by hand from the rows of its steps."""

import json
import statistics
from datetime import datetime, timedelta, timezone
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from sglang_instrument.analysis import NotebookRun, open_run, step_ledger, worker_ledger
from sglang_instrument.analysis.answers.engine.call_times import paths_of
from sglang_instrument.cli.main import main
from sglang_instrument.errors import InstrumentError
from sglang_instrument.testing import synthetic_run

WEEK_SEC = 7 * 86_400.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps, and, in the next week, a launch that goes on with steps 4 to 7."""
    root = tmp_path_factory.mktemp("weeks")
    later = {"clock_skew": {0: WEEK_SEC, 1: WEEK_SEC}, "first_step": 4}
    synthetic_run(root / "exp", steps=3, workers=2, requests=4, seed=1)
    synthetic_run(root / "new", steps=4, workers=2, requests=4, seed=2, **later)
    for part in (root / "new").iterdir():
        part.rename(root / "exp" / part.name)
    return root / "exp"


@pytest.fixture(scope="module")
def run(folder: Path) -> NotebookRun:
    return open_run(folder)


def test_a_row_a_week_sums_up_its_steps(run: NotebookRun) -> None:
    steps = run.summary().to_dicts()
    first, second = run.summary(by="week").to_dicts()
    assert (first["period"], first["begin"].isoformat()) == ("2026-W02", "2026-01-05")
    assert (second["period"], second["begin"].isoformat()) == ("2026-W03", "2026-01-12")
    for row, its_steps in ((first, steps[:3]), (second, steps[3:])):
        took = [step["duration_sec"] for step in its_steps]
        wall_sec = sum(step["to_next_step_sec"] for step in its_steps)
        tokens = sum(step["response_tokens"] for step in its_steps)
        assert row["steps"] == len(its_steps)
        assert row["requests"] == sum(step["requests"] for step in its_steps)
        assert row["p50_sec"] == pytest.approx(statistics.median(took))
        assert row["p90_sec"] == pytest.approx(statistics.quantiles(took, n=10, method="inclusive")[8])
        assert row["to_next_step_sec"] == pytest.approx(wall_sec)
        assert row["tokens_per_sec"] == pytest.approx(tokens / wall_sec)
        assert row["slowest_sec"] == max(took)
        assert row["slowest_step"] == max(its_steps, key=lambda step: step["duration_sec"])["step"]
        engine = sum(step["engine_sec"] for step in its_steps) / wall_sec
        assert row["share_engine"] == pytest.approx(engine)
        assert sum(sec for name, sec in row.items() if name.startswith("share_")) == pytest.approx(1.0)
    assert (first["restarts"], second["restarts"]) == (0, 1)


def test_days_are_those_of_utc(run: NotebookRun) -> None:
    begun = run.digest.steps.group_by("step").agg(start_us=run.digest.steps["start_us"].min()).height
    assert begun == 7
    days = run.summary(by="day")
    first_us = run.digest.steps["start_us"].min()
    first = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=first_us)
    assert days["period"][0] == first.date().isoformat()
    assert days["steps"].sum() == 7


def test_failures_and_losses_are_counted_in_their_week(tmp_path: Path) -> None:
    folder = synthetic_run(tmp_path / "exp", steps=3, workers=2, requests=4, seed=1)
    path = folder / "step_2/worker_1.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    failed = next(n for n, line in enumerate(lines) if b'"async_rollout_request_complete"' in line)
    lines[failed] = lines[failed].replace(b'"duration_sec"', b'"error":"TimeoutError","duration_sec"')
    closed = next(n for n, line in enumerate(lines) if b'"step_closed"' in line)
    lines[closed] = lines[closed].replace(b'"dropped":0', b'"dropped":7')
    path.write_bytes(b"".join(lines))
    killed = folder / "step_3/worker_0.jsonl"
    whole = killed.read_bytes().splitlines(keepends=True)
    killed.write_bytes(b"".join(line for line in whole if b'_closed"' not in line))
    [row] = open_run(folder).summary(by="week").to_dicts()
    assert (row["failed"], row["dropped"], row["unended"]) == (1, 7, 1)


def test_a_launch_without_a_step_has_its_week(folder: Path, tmp_path: Path) -> None:
    copied = synthetic_run(tmp_path / "exp", steps=2, workers=1, requests=2, seed=1)
    header = (folder / "step_4/worker_0.jsonl").read_bytes().splitlines()[0]
    (copied / "step_3").mkdir()
    (copied / "step_3/worker_0.jsonl").write_bytes(header.replace(b'"step":4', b'"step":3') + b"\n")
    first, second = open_run(copied).summary(by="week").to_dicts()
    assert (first["steps"], second["steps"], second["restarts"]) == (2, 0, 1)
    assert second["p50_sec"] is second["tokens_per_sec"] is second["share_engine"] is None


def test_the_command_prints_weeks_and_their_time_zone(
    folder: Path, run: NotebookRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["summary", str(folder), "--by", "week"]) == 0
    shown = capsys.readouterr().out
    assert "2026-W02" in shown
    assert "UTC" in shown
    assert main(["summary", str(folder), "--by", "week", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["by"], answer["timezone"]) == ("week", "UTC")
    assert [row["steps"] for row in answer["periods"]] == run.summary(by="week")["steps"].to_list()
    assert sum(answer["periods"][0]["parts"].values()) == pytest.approx(1.0)
    assert "steps" not in answer


def test_validations_have_their_own_rows(tmp_path: Path) -> None:
    folder = synthetic_run(tmp_path / "exp", steps=4, workers=2, requests=2, validate_every=2)
    run = open_run(folder)
    assert run.summary(by="week")["steps"].to_list() == [4]
    assert run.summary(validate=True, by="week")["steps"].to_list() == [2]


def test_another_period_is_refused(run: NotebookRun) -> None:
    with pytest.raises(InstrumentError, match=r"day, week, got 'month'"):
        run.summary(by="month")


def test_the_ledger_of_some_steps_equals_their_rows_in_that_of_all(tmp_path: Path) -> None:
    shape = {"steps": 5, "workers": 3, "requests": 4, "validate_every": 2, "engine_clocks": {0: 0.0, 1: 3.0}}
    run = open_run(synthetic_run(tmp_path / "exp", **shape))
    for ledger in (step_ledger, worker_ledger):
        every = ledger(paths_of(run))
        assert every["part"].n_unique() > 5
        for steps in ([2], [1, 4], [5]):
            wanted = pl.col("step").is_in(steps)
            assert_frame_equal(ledger(paths_of(run, steps)).filter(wanted), every.filter(wanted))
