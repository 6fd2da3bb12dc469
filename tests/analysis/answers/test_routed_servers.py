"""`servers` and `turns`: load, cache and moves by server are what was counted while the run was played."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from routed_run import RoutedRun

from sglang_instrument.analysis import open_run, server_calls, server_table
from sglang_instrument.analysis.answers.routing.samples import server_samples
from sglang_instrument.cli.main import main


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("NO_COLOR", "1")


def answer(capsys: pytest.CaptureFixture[str], command: str, *arguments: object) -> Any:
    assert main([command, *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def printed(capsys: pytest.CaptureFixture[str], command: str, *arguments: object) -> str:
    assert main([command, *map(str, arguments)]) == 0
    return capsys.readouterr().out


def sums(rows: list[dict[str, Any]]) -> dict[str, Counter[str]]:
    names = ("calls", "prompt_tokens", "cached_tokens", "completion_tokens")
    return {row["server"]: Counter({name: row[name] for name in names}) for row in rows}


def test_sums_by_server_are_what_the_servers_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RoutedRun(policy="random", servers=3)
    result = answer(capsys, "servers", run.write(tmp_path / "run"))
    assert sums(result["servers"]) == run.truth
    assert result["unknown"] == []


@pytest.mark.parametrize("callers", ["rid", "verl"])
def test_the_servers_own_names_come_first_where_callers_and_servers_log(
    callers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RoutedRun(policy="round_robin", callers=callers)
    assert sums(answer(capsys, "servers", run.write(tmp_path / "run"))["servers"]) == run.truth


def test_callers_alone_tell_what_each_address_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RoutedRun(policy="round_robin", callers="areal", engines=False)
    result = answer(capsys, "servers", run.write(tmp_path / "run"))
    named = {f"10.0.0.{number}:30000": run.truth[f"server_{number}"] for number in range(2)}
    assert sums(result["servers"]) == named
    assert {row["kv_cache_share"] for row in result["servers"]} == {None}
    assert any("key-value cache" in words for words in result["unknown"])


def test_what_no_process_logged_is_unknown_and_not_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RoutedRun(policy="round_robin", callers="verl", engines=False).write(tmp_path / "run")
    result = answer(capsys, "servers", folder)
    for row in result["servers"]:
        assert row["server"].startswith("replica-")
        assert [row[name] for name in ("cached_tokens", "cached_share", "queue_share", "retractions")] == [
            None
        ] * 4
    assert result["affinity"]["cached_share"] is None
    assert {row["cached_tokens"] for row in answer(capsys, "turns", folder)["turns"]} == {None}
    assert "tokens in the cache are logged by" in printed(capsys, "servers", folder)


def test_calls_whose_server_nobody_logged_stand_in_a_row_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RoutedRun(engines=False).write(tmp_path / "run")
    (row,) = answer(capsys, "servers", folder)["servers"]
    assert row["server"] is None
    assert row["calls"] > 0
    assert "which server ran a call is logged by" in printed(capsys, "servers", folder)


def test_a_run_without_rids_says_what_would_record_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sglang_instrument.testing import synthetic_run

    folder = synthetic_run(tmp_path / "run", steps=1, workers=2, requests=4)
    text = printed(capsys, "servers", folder, "--over-time")
    assert text.startswith(
        f"{folder}: no server is known\nthe log does not tell which engine calls ran where"
    )
    assert len(text.splitlines()) == 2
    assert answer(capsys, "servers", folder, "--over-time")["servers"] == []


def test_a_router_that_knows_the_caches_keeps_conversations_and_round_robin_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache_aware = answer(capsys, "servers", RoutedRun().write(tmp_path / "kept"))["affinity"]
    spread = answer(capsys, "servers", RoutedRun(policy="round_robin").write(tmp_path / "spread"))["affinity"]
    assert cache_aware["stayed_share"] == 1
    assert cache_aware["read_again_tokens"] == 0
    assert spread["stayed_share"] < 0.7
    assert spread["cached_share_moved"] < 0.5 * spread["cached_share_stayed"]
    assert spread["read_again_tokens"] > 10_000


def test_a_skewed_router_is_out_of_balance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = answer(capsys, "servers", RoutedRun(policy="skewed").write(tmp_path / "run"))
    assert result["balance"]["busiest"] == "server_0"
    assert result["balance"]["times_mean"] > 1.5


def test_hits_by_turn_are_those_of_all_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RoutedRun(policy="random")
    turns = answer(capsys, "turns", run.write(tmp_path / "run"))["turns"]
    for name in ("prompt_tokens", "cached_tokens"):
        assert sum(row[name] or 0 for row in turns) == sum(truth[name] for truth in run.truth.values())
    first = [row for row in turns if row["turn"] == 0]
    assert {row["cached_tokens"] for row in first} == {0}


def test_slices_of_time_add_up_to_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RoutedRun().write(tmp_path / "run")
    whole = answer(capsys, "servers", folder, "--step", 2)
    for slices in ("--over-time", "--over-time=5"):
        result = answer(capsys, "servers", folder, "--step", 2, slices)
        assert len(result["over_time"]) == 2 * (5 if "5" in slices else 12)
        for row in whole["servers"]:
            parts = [part for part in result["over_time"] if part["server"] == row["server"]]
            assert sum(part["calls"] for part in parts) == row["calls"]
            loads = sum(part["mean_in_flight"] * (part["to_sec"] - part["from_sec"]) for part in parts)
            assert loads == pytest.approx(row["call_sec"], rel=1e-3)
    by_step = answer(capsys, "servers", folder, "--over-time")["over_time"]
    assert [(row["step"], row["server"]) for row in by_step] == [
        (step, f"server_{number}") for step in (1, 2, 3, 4) for number in (0, 1)
    ]


def test_the_cache_is_sampled_at_admissions(tmp_path: Path) -> None:
    run = open_run(RoutedRun().write(tmp_path / "run"), cached=False)
    calls = server_calls(run)
    samples = server_samples(run, calls)
    assert len(samples) == len(calls)
    table = server_table(calls, samples)
    assert table["kv_cache_running_share"].to_list() == [pytest.approx(0.1)] * 2
    assert (table["kv_cache_share"] > table["kv_cache_running_share"]).all()


def test_servers_without_workers_have_a_row_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RoutedRun(policy="round_robin")
    run.write(tmp_path / "run")
    shutil.copytree(tmp_path / "run/engine", tmp_path / "alone/engine")
    result = answer(capsys, "servers", tmp_path / "alone", "--over-time=3")
    assert sums(result["servers"]) == run.truth
    assert {row["moved_here"] for row in result["servers"]} == {None}
    assert any("moves are known" in words for words in result["unknown"])


def test_schedulers_of_one_server_have_a_row_each_for_each_has_a_cache(tmp_path: Path) -> None:
    folder = RoutedRun(policy="round_robin").write(tmp_path / "run")
    whole = (folder / "engine/server_0.jsonl").read_text() + (folder / "engine/server_1.jsonl").read_text()
    (folder / "engine/server_1.jsonl").unlink()
    (folder / "engine/server_0.jsonl").write_text(whole)
    names = server_calls(open_run(folder, cached=False))["server"].unique().sort().to_list()
    assert names == ["server_0 scheduler_0_tp0", "server_0 scheduler_1_tp0"]


def test_a_dataset_answers_as_the_log_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RoutedRun(policy="random").write(tmp_path / "run")
    assert main(["export", str(folder), "--parquet", str(tmp_path / "stored")]) == 0
    capsys.readouterr()
    for command in ("servers", "turns"):
        mine, stored = (answer(capsys, command, place) for place in (folder, tmp_path / "stored"))
        assert mine | {"folder": ""} == stored | {"folder": ""}


def test_strange_fields_are_unknown_and_stop_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RoutedRun(steps=1, callers="areal").write(tmp_path / "run")
    for path in folder.rglob("*.jsonl"):
        text = path.read_text().replace('"cached_tokens": ', '"cached_tokens": -').replace("kv_tokens", "kv")
        text = text.replace('"server": "10.0.0.1:30000"', '"server": [1]')
        path.write_text(text.replace('"kv_free_pages": ', '"kv_free_pages": 1e999'))
    result = answer(capsys, "servers", folder, "--over-time")
    assert result["servers"][0]["kv_cache_share"] is None
    assert result["servers"][0]["calls"] > 0


def test_pruned_steps_still_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import os

    folder = RoutedRun(policy="round_robin", callers="areal").write(tmp_path / "run")
    before = {command: answer(capsys, command, folder) for command in ("servers", "turns")}
    for path in folder.rglob("*.jsonl"):
        os.utime(path, (1e9, 1e9))
    assert main(["prune", str(folder), "--keep-steps", "1", "--keep-slowest", "0", "--yes"]) == 0
    capsys.readouterr()
    assert not (folder / "step_1/worker_0.jsonl").exists()
    for command, result in before.items():
        assert answer(capsys, command, folder) == result


def test_servers_that_nobody_of_the_rollout_calls_do_not_count_for_the_balance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RoutedRun(policy="round_robin").write(tmp_path / "run")
    other = RoutedRun(servers=1, requests=4).write(tmp_path / "rewards")
    for name in ("server", "scheduler", "detokenizer"):
        (path,) = (other / "engine").glob(f"{name}_0*")
        stem = path.name.replace("_0", "_7")
        (folder / "engine" / stem).write_text(path.read_text().replace('"rid": "', '"rid": "reward-'))
    result = answer(capsys, "servers", folder)
    assert [row["server"] for row in result["servers"]] == ["server_0", "server_1", "server_7"]
    assert result["balance"]["servers"] == 2
    assert result["balance"]["times_mean"] < 1.2
