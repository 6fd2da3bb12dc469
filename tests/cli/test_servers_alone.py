"""Logs of servers alone: commands answer by the engine's calls, and say what is not known."""

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from sglang_instrument.analysis.answers.servers import _pause, _usual_length
from sglang_instrument.cli.main import main
from sglang_instrument.testing import synthetic_run

ALONE = "no worker logged, so steps and turns are not known"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two workers whose engines logged, too."""
    folder = tmp_path_factory.mktemp("logs") / "both"
    return synthetic_run(folder, steps=2, workers=2, requests=8, seed=1, engine_clocks={0: 0.0, 1: 0.0})


@pytest.fixture(scope="module")
def servers(both: Path) -> Path:
    """The same without the workers' files."""
    folder = both.with_name("servers")
    shutil.copytree(both / "engine", folder / "engine")
    return folder


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("NO_COLOR", "1")


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(list(map(str, arguments))) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(list(map(str, arguments))) == 2
    return capsys.readouterr().err


def test_requests_are_those_of_the_engine(
    both: Path, servers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_servers = answer(capsys, "requests", servers, "--limit", "1000")
    of_engine = answer(capsys, "requests", both, "--engine", "--limit", "1000")["engine_requests"]
    assert of_servers["requests"] == []
    assert [row["rid"] for row in of_servers["engine_requests"]] == [row["rid"] for row in of_engine]
    shown = printed(capsys, "requests", servers)
    assert ALONE in shown
    assert of_engine[0]["rid"] in shown


def test_a_request_is_found_by_the_begin_of_its_rid(
    servers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rid = answer(capsys, "requests", servers)["engine_requests"][0]["rid"]
    matching = answer(capsys, "requests", servers, "--request", rid[:-2])["engine_requests"]
    assert {row["rid"][: len(rid) - 2] for row in matching} == {rid[:-2]}
    assert "no request of the engine with the rid 'zz'" in refused(
        capsys, "requests", servers, "--request", "zz"
    )


def test_what_only_workers_log_is_refused(servers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "know no --worker" in refused(capsys, "requests", servers, "--worker", "1")
    assert "know no --cdf" in refused(capsys, "requests", servers, "--cdf")
    assert "no step has a record yet" in refused(capsys, "events", servers, "--step", "1")


def test_requests_are_filtered_by_their_tokens(servers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = answer(capsys, "requests", servers, "--max-tokens", "60", "--limit", "1000")["engine_requests"]
    many = answer(capsys, "requests", servers, "--min-tokens", "61", "--limit", "1000")["engine_requests"]
    every = answer(capsys, "requests", servers, "--limit", "1000")["engine_requests"]
    assert few
    assert len(few) + len(many) == len(every)


def test_events_are_those_of_the_engine_without_shares(
    servers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = {row["event"]: row for row in answer(capsys, "events", servers)["events"]}
    every = answer(capsys, "requests", servers, "--limit", "1000")["engine_requests"]
    assert events["engine_request"]["count"] == len(every)
    assert {row["steps_share"] for row in events.values()} == {None}
    assert ALONE in printed(capsys, "events", servers)


def test_turns_are_the_engines_calls_in_one_row_without_a_number(
    servers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = answer(capsys, "turns", servers)
    every = answer(capsys, "requests", servers, "--limit", "1000")["engine_requests"]
    (row,) = turns["turns"]
    assert (row["turn"], row["requests"], turns["counts"]) == (None, len(every), [])
    assert row["engine_sec"] == pytest.approx(sum(request["duration_sec"] for request in every))
    assert row["response_tokens"] == sum(request["completion_tokens"] for request in every)
    assert ALONE in printed(capsys, "turns", servers)


def test_the_summary_has_a_row_for_each_server(servers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = answer(capsys, "summary", servers)
    every = answer(capsys, "requests", servers, "--limit", "1000")["engine_requests"]
    assert [row["server"] for row in summary["servers"]] == ["server_0", "server_1"]
    assert sum(row["requests"] for row in summary["servers"]) == len(every)
    assert summary["verdict"] == "none, for only the engine's processes logged, and they know no steps"
    shown = printed(capsys, "summary", servers)
    assert f"2 servers, {len(every)} requests of the engine" in shown
    assert ALONE in shown


def test_with_workers_the_answers_are_theirs(both: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("summary", "events", "requests", "turns"):
        assert ALONE not in printed(capsys, command, both)
    assert len(answer(capsys, "summary", both)["servers"]) == 2


def test_windows_cut_at_pauses_are_the_steps_that_nobody_logged(
    both: Path, servers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    windows = answer(capsys, "summary", servers)["windows"]
    every = answer(capsys, "requests", servers, "--limit", "1000")["engine_requests"]
    placed = answer(capsys, "requests", both, "--engine", "--limit", "1000")["engine_requests"]
    assert [(row["window"], row["cut_by"]) for row in windows] == [(1, "idle"), (2, "idle")]
    assert [row["requests"] for row in windows] == [
        sum(request["step"] == step for request in placed)
        for step in sorted({request["step"] for request in placed})
    ]
    assert sum(row["completion_tokens"] for row in windows) == sum(
        request["completion_tokens"] for request in every
    )
    assert windows[0]["idle_sec"] is None
    assert windows[1]["idle_sec"] > 1
    assert windows[1]["p99_sec"] <= windows[1]["max_sec"] <= windows[1]["first_to_last_sec"]
    assert "2 windows of time, in place of steps" in printed(capsys, "summary", servers)


def test_windows_are_cut_by_the_clock_if_asked(servers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    windows = answer(capsys, "summary", servers, "--window", "0.5")["windows"]
    every = answer(capsys, "requests", servers, "--limit", "1000")["engine_requests"]
    begin = min(request["start_us"] for request in every)
    assert sum(row["requests"] for row in windows) == len(every)
    assert {row["cut_by"] for row in windows} == {"fixed"}
    places = [(row["begin_us"] - begin) // 500_000 for row in windows]
    assert places == sorted(set(places))
    shown = printed(capsys, "summary", servers, "--window", "0.5")
    assert "are shown, the slowest and the last" in shown
    assert "must be a number of seconds over 0" in refused(capsys, "summary", servers, "--window", "0")


def test_requests_without_a_pause_are_in_windows_of_a_round_length(tmp_path: Path) -> None:
    rows = [
        {"rid": f"r{n}", "start_us": n * 500_000, "end_us": n * 500_000 + 900_000, "duration_sec": 0.9}
        for n in range(100)
    ]
    begins = pl.DataFrame(rows)
    assert _pause(pl.Series([None, -0.4, 0.2], dtype=pl.Float64)) is None
    assert _usual_length(begins) == 5.0


def test_a_run_with_workers_has_windows_only_if_asked(both: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "summary", both)["windows"] == []
    assert len(answer(capsys, "summary", both, "--window", "1000000")["windows"]) == 1
    assert "1 window of time" in printed(capsys, "summary", both, "--window", "1000000")


def test_an_engine_whose_user_binds_no_step_has_windows(
    both: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unbound = both.with_name("unbound")
    shutil.copytree(both / "engine", unbound / "engine")
    (unbound / "step_0").mkdir()
    for path in (both / "step_1").glob("*.jsonl"):
        text = path.read_text().replace('"step":1,', '"step":0,')
        (unbound / "step_0" / path.name).write_text(text)
    assert len(answer(capsys, "summary", unbound)["windows"]) == 2
