"""Values that no column holds: huge numbers, odd types, years beyond calendars. Each costs itself alone."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.answers.engine.requests import engine_requests
from sglang_instrument.analysis.answers.routing.gauges import gauge_table
from sglang_instrument.analysis.store import homes
from sglang_instrument.analysis.store.after_answer import write_now
from sglang_instrument.cli.main import main
from sglang_instrument.testing import synthetic_run

T_US = 1_795_161_600_000_000
ODD = (10**30, -(2**63) - 1, 1e300, {"a": 1}, "")


def line(**keys: Any) -> dict[str, Any]:
    stamp = {"timestamp": "2026-11-20T08:00:00.000000+00:00", "event": "turn_engine_call"}
    return {**stamp, "duration_sec": 1.0, "workid": 0, "step": 1, "start_us": T_US, "task": 0, **keys}


def write(folder: Path, *lines: dict[str, Any], inside: str = "step_1") -> Path:
    path = folder / inside / "worker_0.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in lines))
    return folder


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the engine's logs, in which each field of each event has each odd value once."""
    folder = synthetic_run(
        tmp_path_factory.mktemp("odd") / "exp", steps=1, workers=1, requests=2, engine_clocks={0: 0.0}
    )
    for path in folder.rglob("*.jsonl"):
        lines = [json.loads(text) for text in path.read_text().splitlines()]
        first = {record["event"]: record for record in reversed(lines) if "log_" not in record["event"]}
        more = [
            {**record, "extra": {**record["extra"], key: value}}
            for record in first.values()
            for key in record.get("extra") or {}
            for value in ODD
        ]
        lines[1:1] = more
        path.write_text("".join(json.dumps(record) + "\n" for record in lines))
    return folder


@pytest.mark.parametrize(
    "words", ["summary", "requests --engine", "turns --tools", "servers", "waste", "check"]
)
def test_odd_fields_of_the_engine_leave_an_answer(
    odd: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *options = words.split()
    assert main([command, str(odd), *options, "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)


UNFIT = [
    line(extra={"request_id": "a", "turn": 0}),
    line(duration_sec=1e13, workid="x", task=2**70, extra={"request_id": {"a": 1}, "turn": 10**30}),
    line(active_sec=float("nan"), extra={"request_id": "a", "turn": 10**5000 // 3, "hits": float("inf")}),
]
LEFT_OUT = {"duration_sec": 1, "workid": 1, "task": 1, "request_id": 1, "turn": 2, "active_sec": 1, "hits": 1}


def in_words(words: str) -> str:
    return f"8 values that no column can hold, left out: {words}"


@pytest.fixture
def digits() -> Iterator[None]:
    """Let Python write integers of many digits."""
    most = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(6000)
    yield
    sys.set_int_max_str_digits(most)


def test_values_that_fit_no_column_are_counted_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], digits: None
) -> None:
    write(tmp_path, *UNFIT)
    sys.set_int_max_str_digits(4300)
    run = open_run(tmp_path)
    assert len(run.records) == 3
    assert run.health.unfit == LEFT_OUT
    assert run.health.unfit_examples["request_id"] == 'step_1/worker_0.jsonl: {"a": 1}'
    assert run.health.unfit_examples["hits"] == "step_1/worker_0.jsonl: Infinity"
    assert main(["summary", str(tmp_path)]) == 0
    assert in_words("duration_sec: 1 (step_1/worker_0.jsonl: 10000000000000.0)") in capsys.readouterr().out
    assert main(["check", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["health"]["unfit"] == LEFT_OUT
    assert main(["requests", str(tmp_path), "--json"]) == 0
    assert in_words("duration_sec: 1 (") in capsys.readouterr().err


def test_a_digest_from_the_store_counts_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes, "_WORTHWHILE_BYTES", 1)
    write(tmp_path, line(), line(task=2**70))
    os.utime(tmp_path / "step_1/worker_0.jsonl", (0, 0))
    assert open_run(tmp_path).health.unfit == {"task": 1}
    write_now()
    assert (tmp_path / ".store").exists()
    assert open_run(tmp_path).health.unfit == {"task": 1}


def test_values_of_the_engine_that_fit_no_column_are_counted_and_named(
    odd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["servers", str(odd), "--json"]) == 0
    said = capsys.readouterr().err
    assert "values that no column can hold, left out: " in said
    run = open_run(odd)
    gauge_table(run)
    engine_requests(run)
    for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "turn"):
        assert run.health.unfit[name] >= 4, name  # of ODD, the empty text is an id
        assert ".jsonl: 1000000" in run.health.unfit_examples[name]
    before = dict(run.health.unfit)
    engine_requests(run)
    assert run.health.unfit == before


def test_a_sum_of_a_field_says_what_it_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = [3, "many", 4, {"a": 1}]
    write(tmp_path, *(line(extra={"request_id": "a", "hits": value}) for value in values))
    assert main(["events", str(tmp_path), "--fields", "hits", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["events"][0]["fields"] == {"hits": 7}
    assert "hits: 2 values are no numbers and are left out of the sum, such as '{" in printed.err


@pytest.mark.parametrize("command", ["summary", "events", "requests", "turns", "workers", "check", "runs"])
def test_a_run_with_validation_only_has_answers(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "run", line(extra={"request_id": "a"}), inside="validate_1")
    assert main([command, str(tmp_path / "run"), "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("start_us", [10**18, -62_200_000_000_000_000, -(10**17)])
def test_a_start_outside_of_calendars_gives_way_to_the_timestamp(
    tmp_path: Path, start_us: int, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, line(start_us=start_us, extra={"request_id": "a"}))
    for words in ("summary --by day", "runs", "check"):
        command, *options = words.split()
        assert main([command, str(tmp_path), *options]) in (0, 1)
    assert open_run(tmp_path).records["start_us"].to_list() == [T_US - 1_000_000]
    capsys.readouterr()
    assert main(["sql", str(tmp_path), "select other_keys from spans", "--json"]) == 0
    assert str(start_us) in capsys.readouterr().out


def test_a_record_whose_times_are_all_outside_of_calendars_is_counted_as_foreign(tmp_path: Path) -> None:
    write(tmp_path, line(), line(start_us=10**18, timestamp="x"), line(start_us=None, timestamp="0001-01-01"))
    run = open_run(tmp_path)
    assert (len(run.records), run.health.foreign) == (1, 2)


@pytest.mark.parametrize("year", ["1938", "8999"])
def test_times_that_perfetto_cannot_hold_are_no_error(
    tmp_path: Path, year: str, capsys: pytest.CaptureFixture[str]
) -> None:
    start_us = {"1938": -(10**15), "8999": 221_800_000_000_000_000}[year]
    write(tmp_path / "run", line(start_us=start_us, extra={"request_id": "a"}))
    assert main(["export", str(tmp_path / "run"), "--perfetto", str(tmp_path / "trace")]) == 0
    capsys.readouterr()


def test_what_if_replays_the_requests_that_have_a_duration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = synthetic_run(tmp_path / "exp", steps=1, workers=1, requests=4)
    path = next(folder.glob("step_1/worker_0*.jsonl"))
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    whole = [record for record in lines if record["event"] == "async_rollout_request_complete"]
    whole[0]["duration_sec"] = 1e13
    path.write_text("".join(json.dumps(record) + "\n" for record in lines))
    assert main(["whatif", str(folder), "--max-tokens", "100", "--json"]) == 0
    capsys.readouterr()


def test_a_duration_of_thousands_of_years_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, line(), line(duration_sec=1e13))
    assert open_run(tmp_path).records["duration_sec"].to_list() == [1.0, None]


@pytest.mark.parametrize(
    "value",
    ["timestamp '290000-01-01'", "date '290000-01-01'", "'infinity'::timestamp", "'0044-01-01 (BC)'::date"],
)
@pytest.mark.parametrize("option", ["--json", "--csv", ""])
def test_sql_leaves_out_dates_that_no_calendar_has_and_names_their_column(
    tmp_path: Path, value: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, line())
    query = f"select {value} as odd, date '2026-11-20' as usual"
    assert main(["sql", str(tmp_path), query, *([option] if option else [])]) == 0
    printed = capsys.readouterr()
    assert "column odd: 1 outside of the years 1 to 9999" in printed.err
    assert "2026-11-20" in printed.out


def test_compare_says_ratios_that_are_too_large_for_a_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, sec in (("a", 1e-300), ("b", 1e8)):
        for step in range(1, 7):
            whole = line(event="total_step_duration", duration_sec=sec * (1 + step / 100), step=step)
            write(tmp_path / name, whole, inside=f"step_{step}")
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) in (0, 1)
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]) in (0, 1)
    capsys.readouterr()


def test_damaged_parquet_of_a_dataset_is_an_error_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write(tmp_path / "log", line(extra={"request_id": "a"}))
    dataset = tmp_path / "dataset"
    assert main(["export", str(log), "--parquet", str(dataset)]) == 0
    path = max((dataset / "parts").rglob("*.parquet"), key=lambda file: file.stat().st_size)
    whole = path.read_bytes()
    for position in range(4, len(whole), len(whole) // 8):
        path.write_bytes(whole[:position] + b"\xff" * 40 + whole[position + 40 :])
        assert main(["summary", str(dataset), "--json"]) in (0, 2)
    capsys.readouterr()
