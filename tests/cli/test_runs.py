"""`runs` lists experiments below a folder, and the runs of one."""

import json
from pathlib import Path

import pytest

from sglang_instrument.cli.commands.runs import slowdown_of
from sglang_instrument.cli.main import main
from sglang_instrument.testing import SlowEngine, synthetic_run


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two experiments; `shared` has an older run of four steps, and a newer one that wrote two of them."""
    folder = tmp_path_factory.mktemp("logs")
    slow = SlowEngine(4, 1, factor=6.0)
    synthetic_run(folder / "slow", steps=6, workers=2, requests=8, seed=3, causes=[slow])
    synthetic_run(folder / "shared", steps=4, workers=2, requests=4, seed=1)
    new = synthetic_run(
        folder / "tmp/new", steps=2, workers=2, requests=4, seed=2, clock_skew={0: 3600.0, 1: 3600.0}
    )
    for path in new.rglob("*.jsonl"):
        with (folder / "shared" / path.relative_to(new)).open("ab") as stream:
            stream.write(path.read_bytes())
    return folder


def answer(capsys: pytest.CaptureFixture[str], folder: Path) -> dict[str, dict[str, object]]:
    assert main(["runs", str(folder), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    return {Path(row["logs"]).name: row for row in listed["runs"]}


def test_runs_lists_the_experiments_below_a_folder(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = answer(capsys, logs)
    assert list(rows) == ["slow", "shared"]  # the one that began last is last
    slow = rows["slow"]
    assert (slow["runs"], slow["steps"], slow["workers"]) == (1, 6, 2)
    assert slow["bytes"] == sum(path.stat().st_size for path in (logs / "slow").rglob("*.jsonl"))
    assert slow["cause"] == "engine, step 4 worker 1"
    assert isinstance(slow["slowdown_share"], float)
    assert (rows["shared"]["run_id"], rows["shared"]["runs"]) == ("synthetic-2", 2)


def test_runs_of_an_experiment_have_ids_that_every_command_opens(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = answer(capsys, logs / "shared")
    assert {name: row["steps"] for name, row in rows.items()} == {
        "shared@synthetic-1": 4,
        "shared@synthetic-2": 2,
    }
    assert main(["summary", str(rows["shared@synthetic-1"]["logs"])]) == 0
    assert "shared (run synthetic-1): 4 steps" in capsys.readouterr().out.replace("\n", " ")


def test_runs_prints_a_table_and_says_how_to_open_a_run(
    logs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("SGLANG_INSTRUMENT_LOG_DIR", str(logs))
    assert main(["runs"]) == 0
    out = capsys.readouterr().out
    assert "engine, step 4 worker 1" in out
    assert f"`sglang-instrument runs {logs}/shared`" in out.replace("\n", "")
    assert main(["runs", str(logs / "shared")]) == 0
    assert f"`sglang-instrument summary {logs}/shared@synthetic-1`" in capsys.readouterr().out.replace(
        "\n", ""
    )


def test_an_experiment_that_cannot_be_read_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic_run(tmp_path / "fine", steps=1, workers=1, requests=2)
    (tmp_path / "empty/step_1").mkdir(parents=True)
    rows = answer(capsys, tmp_path)
    assert "no records yet" in str(rows["empty"]["error"])
    assert rows["fine"]["steps"] == 1
    assert main(["runs", str(tmp_path)]) == 0
    assert "empty: no records yet" in capsys.readouterr().out.replace("\n", " ")


def test_the_slowdown_compares_the_halves_of_a_run() -> None:
    assert slowdown_of([1.0] * 5) is None
    assert slowdown_of([1.0, 1.0, 1.0, 1.2, 1.2, 1.2]) == pytest.approx(0.2)
    assert slowdown_of([2.0, 1.0, 1.0, 5.0, 1.0, 1.0, 1.0]) == pytest.approx(0.0)


def test_two_runs_of_a_folder_are_compared_and_reported_by_their_ids(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    first, second = (f"{logs}/shared@synthetic-{number}" for number in (1, 2))
    assert main(["compare", first, second]) in (0, 3)
    assert (
        f"{logs}/shared (run synthetic-2) against {logs}/shared (run synthetic-1)" in capsys.readouterr().out
    )
    assert main(["report", first, "-o", str(tmp_path / "one.html")]) == 0
    assert f"{logs}/shared (run synthetic-1)" in (tmp_path / "one.html").read_text()
