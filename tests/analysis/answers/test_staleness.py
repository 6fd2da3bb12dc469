"""`staleness` says how old the weights of each trained sample were, what waited, and what made it stale."""

import json
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest
from async_run import AsyncRun, instant, sample
from hand_written import request as request_record
from hand_written import step_of, write_file

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.answers.asynchronous.fates import sample_fates
from sglang_instrument.analysis.answers.asynchronous.staleness import (
    group_table,
    load_table,
    staleness_table,
    with_staleness,
)
from sglang_instrument.cli.main import main


def fates_of(run: AsyncRun, folder: Path) -> pl.DataFrame:
    return sample_fates(open_run(run.write(folder)).digest)


def asked(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> dict[str, Any]:
    assert main(["staleness", str(folder), *words, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_each_step_says_how_many_versions_its_samples_are_old(tmp_path: Path) -> None:
    steps = staleness_table(fates_of(AsyncRun(), tmp_path)).to_dicts()
    assert [row["step"] for row in steps] == [2, 3, 4]
    for row in steps:
        assert (row["samples"], row["known"], row["version"]) == (6, 6, row["step"])
        assert (row["mean"], row["p99"], row["max"]) == (1, 1, 1)
        assert (row["max_staleness"], row["over_limit"], row["ahead"], row["mixed_share"]) == (2, 0, 0, 0)


def test_samples_wait_from_their_end_until_a_step_takes_them(tmp_path: Path) -> None:
    rows = with_staleness(fates_of(AsyncRun(), tmp_path)).filter(request_id="s1g0m2")
    assert rows["waited_sec"].to_list() == pytest.approx([20.5 - 14])


def test_what_the_last_step_made_still_waits(tmp_path: Path) -> None:
    fates = fates_of(AsyncRun(), tmp_path)
    assert dict(fates["fate"].value_counts().iter_rows()) == {"used": 18, "waiting": 6}


def test_a_sample_that_is_staler_than_allowed_is_counted(tmp_path: Path) -> None:
    run = AsyncRun(steps=5)
    run.rollouts[1] += sample("old", 10, 12, weight_version=1, first_weight_version=1)
    run.take(5, ["old"])
    [last] = staleness_table(fates_of(run, tmp_path)).filter(step=5).to_dicts()
    assert (last["max"], last["over_limit"]) == (4, 1)


def test_weights_that_change_within_a_sample_count_from_its_first_version(tmp_path: Path) -> None:
    run = AsyncRun()
    run.rollouts[2] += sample("mixed", 20, 29, first_weight_version=2, weight_version="3")
    run.take(4, ["mixed"])
    [row] = with_staleness(fates_of(run, tmp_path)).filter(request_id="mixed").to_dicts()
    assert (row["staleness"], row["end_staleness"], row["mixed"]) == (2, 1, True)


def test_a_group_names_its_samples(tmp_path: Path) -> None:
    run = AsyncRun(behind=99)
    run.trainer[2].append(instant("samples_consumed", 20.5, groups=["1-0", "1-1"], weight_version=2))
    assert staleness_table(fates_of(run, tmp_path)).select("step", "samples", "mean").rows() == [(2, 6, 1)]


def test_the_trainers_own_id_of_a_sample_names_it(tmp_path: Path) -> None:
    run = AsyncRun(behind=99)
    run.rollouts[1] += sample("uuid", 10, 12, sample=7, weight_version=1)
    run.trainer[2].append(instant("samples_consumed", 20.5, samples=[7], weight_version=2))
    assert fates_of(run, tmp_path).filter(trained_step=2)["request_id"].to_list() == ["uuid"]


def test_a_record_without_ids_tells_the_trainers_version_in_its_step(tmp_path: Path) -> None:
    run = AsyncRun(behind=99)
    run.take(2, run.names[1], weight_version=None)
    run.trainer[2].append(instant("samples_consumed", 20.1, weight_version=5))
    assert staleness_table(fates_of(run, tmp_path))["mean"].to_list() == [4]


def test_what_is_in_flight_queued_and_waiting_is_counted_as_a_loop_would(tmp_path: Path) -> None:
    run = AsyncRun(steps=6)
    run.rollouts[2] += sample("long", 20, 55, group="x", weight_version=2)
    run.rollouts[3] += sample("asked", 30.2, 33, group="y", weight_version=3)
    digest = open_run(run.write(tmp_path)).digest
    fates = sample_fates(digest)
    for row in load_table(digest, fates).to_dicts():
        time_us, in_flight, queued, waiting = row["at_us"], 0, 0, 0
        for fate in fates.to_dicts():
            runs = fate["start_us"] <= time_us < fate["end_us"]
            in_flight += runs
            queued += runs and fate["start_us"] + 500_000 > time_us
            leaves = {"used": fate["fate_us"], "waiting": 2**62}.get(fate["fate"], fate["end_us"])
            waiting += fate["end_us"] <= time_us < leaves
        assert (row["in_flight"], row["queued"], row["waiting"]) == (in_flight, queued, waiting), row


def test_a_group_waits_for_its_slowest_member(tmp_path: Path) -> None:
    run = AsyncRun()
    run.rollouts[1] += sample("slow", 10, 34, group="1-0", first_weight_version=1, weight_version=3)
    longest = group_table(fates_of(run, tmp_path)).to_dicts()[0]
    assert (longest["group"], longest["slowest"], longest["samples"]) == ("1-0", "slow", 4)
    assert longest["wait_sec"] == pytest.approx(34 - 13)
    assert longest["versions"] == 2


def test_versions_that_go_back_have_no_staleness_and_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = AsyncRun(behind=99)
    run.take(3, run.names[2], weight_version=0)  # restarted: it counts from 0 again
    [row] = asked(capsys, run.write(tmp_path))["steps"]
    assert (row["ahead"], row["known"], row["mean"], row["over_limit"]) == (6, 0, None, None)
    assert main(["staleness", str(tmp_path)]) == 0
    assert "versions went back after a restart, or a label is wrong" in capsys.readouterr().out


def test_a_run_that_logs_nothing_of_it_says_what_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_file(tmp_path, 1, 0, step_of(request_record("a", 0, 4)))
    answer = asked(capsys, tmp_path)
    assert (answer["steps"], answer["groups"], answer["fates"]) == (
        [],
        [],
        [{"fate": "unknown", "samples": 1}],
    )
    for word in ("samples_consumed", "weight_version", "group"):
        assert any(f"`{word}`" in sentence for sentence in answer["missing"])


def test_labels_that_are_no_numbers_are_missing_and_not_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_file(tmp_path, 1, 0, step_of(request_record("a", 0, 4, weight_version="default")))
    taken = instant("samples_consumed", 5, samples=["a", "nobody"])
    write_file(tmp_path, 2, 0, step_of(taken))
    answer = asked(capsys, tmp_path)
    [row] = answer["steps"]
    assert (row["step"], row["samples"], row["mean"], row["version"]) == (2, 1, None, None)
    assert any('label is "default"' in sentence for sentence in answer["missing"])


ODD: list[Any] = [None, True, -1, 2**70, 1.5, "x", "9" * 30, "\ud800", [], {}, [1], ["a", None], "default"]


@pytest.mark.parametrize("seed", range(4))
def test_odd_values_in_any_field_never_raise(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    random, run = Random(seed), AsyncRun()
    for records in (*run.rollouts.values(), *run.trainer.values()):
        for record in records:
            record["extra"] |= {key: random.choice(ODD) for key in record["extra"] if random.random() < 0.2}
    names = ("samples", "groups", "group", "reason", "tokens", "count", "kept")
    for step, records in run.trainer.items():
        records.append(
            instant("samples_dropped", step * 10 + 1, **{key: random.choice(ODD) for key in names})
        )
    folder = str(run.write(tmp_path))
    for command in (["staleness", "--groups"], ["staleness", "--json"], ["waste"], ["waste", "--json"]):
        assert main([command[0], folder, *command[1:]]) == 0
    assert main(["whatif", folder, "--refill", "sample"]) == 0
    assert capsys.readouterr().out


def test_the_table_is_by_step_worker_and_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = AsyncRun().write(tmp_path)
    assert main(["staleness", str(folder), "--by-worker", "--groups", "--step", "2-3"]) == 0
    printed = capsys.readouterr().out
    assert "by the worker that made them\nworker  step  samples" in printed
    assert "18 samples used, 6 not taken by any step yet, 0 thrown away" in printed
    assert "1-0, step 2" in printed
    assert "3-0, step 4" not in printed


def test_requests_tell_the_step_that_trained_on_each_and_its_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    folder = AsyncRun().write(tmp_path)
    assert main(["requests", str(folder), "--trained", "3", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["requests"]
    assert [(row["step"], row["trained_step"], row["weight_version"]) for row in rows] == [(2, 3, 2)] * 6
    assert main(["requests", str(folder), "--step", "4", "--json"]) == 0
    assert {row["trained_step"] for row in json.loads(capsys.readouterr().out)["requests"]} == {None}
    assert main(["requests", str(folder)]) == 0
    header = capsys.readouterr().out.splitlines()[1]
    assert header.startswith("request id")
    assert "  trained step  weight version" in header


def test_a_step_that_the_run_lacks_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = AsyncRun().write(tmp_path)
    assert main(["staleness", str(folder), "--step", "99"]) == 2
    assert "no step 99" in capsys.readouterr().err
    assert main(["staleness", str(folder), "--step", "1"]) == 0  # a step that took no sample


@pytest.mark.parametrize("label", ["default", "v3", [3], 2.5, 10**30])
def test_a_label_that_is_no_number_of_a_version_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], label: object
) -> None:
    run = AsyncRun()
    for line in (line for lines in run.rollouts.values() for line in lines):
        line["extra"] |= {name: label for name in line["extra"] if name.endswith("weight_version")}
    answer = asked(capsys, run.write(tmp_path))
    assert {row["mean"] for row in answer["steps"]} == {None}
    assert answer["missing"][0].startswith("no request logs `weight_version` as a number")


def test_the_version_at_the_begin_of_a_request_is_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = AsyncRun()
    for line in (line for lines in run.rollouts.values() for line in lines):
        line["extra"].pop("weight_version", None)
    answer = asked(capsys, run.write(tmp_path))
    assert {row["mean"] for row in answer["steps"]} == {1.0}
    assert answer["missing"] == []


def test_without_engine_calls_it_is_not_known_how_many_requests_are_queued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = AsyncRun()
    for records in run.rollouts.values():
        records[:] = [line for line in records if line["event"] != "turn_engine_call"]
    answer = asked(capsys, run.write(tmp_path))
    assert {row["queued"] for row in answer["steps"]} == {None}
    assert {row["in_flight"] for row in answer["steps"]} == {6}
    assert 'detail="turn"' in answer["missing"][0]


def test_without_versions_it_is_not_known_whether_samples_are_ahead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = AsyncRun()
    for line in (line for lines in run.rollouts.values() for line in lines):
        line["extra"] = {
            name: value for name, value in line["extra"].items() if not name.endswith("weight_version")
        }
    answer = asked(capsys, run.write(tmp_path))
    assert {row["ahead"] for row in answer["steps"]} == {None}
