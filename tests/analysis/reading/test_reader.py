"""A run's folder is read in any state, and what was left out is counted."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_instrument.analysis import Health, Run, open_run
from sglang_instrument.errors import LogError
from sglang_instrument.testing import synthetic_run

STAMP = "2026-01-05T08:00:01.500000+00:00"
START_US = 1_767_600_000_000_000


def line(event: str = "mine", **keys: Any) -> str:
    return json.dumps({"timestamp": STAMP, "event": event, **keys}) + "\n"


def span(event: str = "mine", **keys: Any) -> str:
    return line(event, **{"duration_sec": 0.5, "start_us": START_US, "task": 0, **keys})


def opened(run_id: str, second: int) -> str:
    stamp = f"2026-01-05T08:00:{second:02}.000000+00:00"
    return json.dumps({"timestamp": stamp, "event": "log_opened", "extra": {"run_id": run_id}}) + "\n"


def put(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(folder: Path, text: str | bytes) -> Run:
    put(folder, "step_1/worker_0.jsonl", text)
    return open_run(folder)


def events(run: Run) -> list[str]:
    return run.records.sort("position")["event"].cast(str).to_list()


def test_a_whole_run_is_read_without_loss(tmp_path: Path) -> None:
    synthetic_run(tmp_path, steps=3, workers=2, requests=5)
    lines = sum(len(path.read_text().splitlines()) for path in tmp_path.rglob("*.jsonl"))
    run = open_run(tmp_path)
    control_records = 3 * 6
    assert len(run.records) == run.health.records == lines - control_records
    assert (run.steps, run.worker_ranks) == ([1, 2, 3], [0, 1])
    assert run.health == Health(files=6, records=len(run.records), runs=["synthetic-0"])
    assert "nothing dropped, torn or left open" in run.health.sentence()


def test_keys_become_typed_columns(tmp_path: Path) -> None:
    extra = {"request_id": 7, "turn": 2, "finish_reason": "stop", "actual_response_tokens": 12, "reward": 1}
    run = read(tmp_path, span(workid=3, step=9, active_sec=0.1, error="ValueError", extra=extra))
    (row,) = run.records.iter_rows(named=True)
    assert row["request_id"] == "7"
    assert (row["worker"], row["step"], row["turn"], row["task"]) == (3, 9, 2, 0)
    assert (row["start_us"], row["end_us"]) == (START_US, START_US + 500_000)
    assert (row["response_tokens"], row["reward"], row["error"]) == (12, 1.0, "ValueError")
    assert (row["role"], row["validate"], row["phase"]) == ("worker", False, "other")


def test_a_torn_last_line_costs_itself_and_is_counted(tmp_path: Path) -> None:
    run = read(tmp_path, span("a") + span("b") + span("c")[:-30])
    assert events(run) == ["a", "b"]
    assert (run.health.torn, run.health.foreign) == (1, 0)
    assert "1 torn line" in run.health.sentence()


def test_a_whole_last_line_without_its_newline_is_kept(tmp_path: Path) -> None:
    run = read(tmp_path, span("a") + span("b")[:-1])
    assert events(run) == ["a", "b"]
    assert run.health.torn == 0


def test_a_torn_line_before_a_restart_costs_itself_only(tmp_path: Path) -> None:
    run = read(tmp_path, opened("r", 0) + span("a") + span("b")[:40] + "\n" + opened("r", 9) + span("c"))
    assert events(run) == ["a", "c"]
    assert run.health.torn == 1


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_file_cut_anywhere_loses_at_most_the_line_that_is_cut(data: st.DataObject) -> None:
    whole = "".join(span(f"e{number}", extra={"request_id": "é"}) for number in range(6)).encode()
    cut = data.draw(st.integers(1, len(whole)))
    with TemporaryDirectory() as folder:
        put(Path(folder), "step_1/worker_1.jsonl", span("other"))
        run = read(Path(folder), whole[:cut])
        assert len(run.records) == run.health.records
    complete = whole[:cut].count(b"\n")
    assert len(run.records) - 1 in (complete, complete + 1)
    assert run.health.torn + run.health.foreign <= 1


@pytest.mark.parametrize(
    "text", ["hello", "[1, 2]", "3", '{"a": 1}', '{"event": 4, "timestamp": "x"}', "\0\0\0", '"\udcff"']
)
def test_foreign_lines_are_left_out_and_counted(tmp_path: Path, text: str) -> None:
    raw = text.encode("utf-8", "surrogateescape")
    run = read(tmp_path, span("a").encode() + raw + b"\n" + span("b").encode())
    assert events(run) == ["a", "b"]
    assert (run.health.torn, run.health.foreign) == (0, 1)


def test_a_timestamp_that_is_none_makes_a_line_foreign(tmp_path: Path) -> None:
    foreign = '{"timestamp": "yesterday", "event": "x"}\n'
    run = read(tmp_path, span("a") + foreign)
    assert events(run) == ["a"]
    assert run.health.foreign == 1


@pytest.mark.parametrize(
    "extra",
    [
        {"reward": {"a": 1}},
        {"finish_reason": {"type": "stop"}},
        {"turns": "many"},
        {"dropped": "yes"},
        {"response_length": 10**30},
        {"request_id": ["a"]},
        ["no", "dict"],
        "text",
    ],
)
def test_a_field_of_an_unexpected_type_costs_itself_only(tmp_path: Path, extra: Any) -> None:
    run = read(tmp_path, span("a", extra=extra) + span("b", extra={"request_id": "r", "turn": 1}))
    assert events(run) == ["a", "b"]
    assert run.records.sort("position")["turn"].to_list() == [None, 1]
    assert run.health.torn + run.health.foreign == 0


def test_nan_and_lone_surrogates_of_the_reference_are_read(tmp_path: Path) -> None:
    nan = (
        '{"timestamp": "2026-01-05T08:00:01", "event": "a", "duration_sec": 1.0, "extra": {"reward": NaN}}\n'
    )
    surrogate = span("b", extra={"request_id": "x\udcff"})
    run = read(tmp_path, nan + surrogate)
    assert events(run) == ["a", "b"]
    assert run.records.sort("position")["request_id"].to_list() == [None, "x?"]


def test_unknown_keys_are_allowed(tmp_path: Path) -> None:
    run = read(tmp_path, span("a", future={"deep": [1]}, extra={"turn": 1, "unknown": {"deep": []}}))
    assert run.records["turn"].to_list() == [1]
    assert run.health.torn + run.health.foreign == 0


def test_a_line_of_ten_megabytes_is_read(tmp_path: Path) -> None:
    run = read(
        tmp_path, span("a") + span("b", extra={"request_id": "r", "long": "x" * 10_000_000}) + span("c")
    )
    assert events(run) == ["a", "b", "c"]


def test_a_line_longer_than_a_chunk_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_instrument.analysis.reading.chunks.CHUNK_BYTES", 64)
    run = read(tmp_path, "".join(span(f"e{number}") for number in range(50)))
    assert events(run) == [f"e{number}" for number in range(50)]


def test_compressed_files_are_read(tmp_path: Path) -> None:
    squeezed = zstandard.compress(span("a").encode()) + zstandard.compress(span("b").encode())
    put(tmp_path, "step_1/worker_0.jsonl.zst", squeezed)
    assert events(open_run(tmp_path)) == ["a", "b"]


def test_a_broken_compressed_file_is_named_and_costs_no_other_file(tmp_path: Path) -> None:
    put(tmp_path, "step_1/worker_1.jsonl.zst", b"this is no zstd")
    run = read(tmp_path, span("a"))
    assert events(run) == ["a"]
    assert list(run.health.unreadable) == ["step_1/worker_1.jsonl.zst"]
    assert "unreadable: step_1/worker_1.jsonl.zst" in run.health.sentence()


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "step_1" / "worker_1.jsonl").mkdir(parents=True)
    assert list(read(tmp_path, span("a")).health.unreadable) == ["step_1/worker_1.jsonl"]


def test_logs_of_the_reference_have_starts_before_their_timestamps(tmp_path: Path) -> None:
    old = {"timestamp": "2026-01-05T08:00:01.500000", "event": "turn_end", "duration_sec": 0.5, "workid": 0}
    run = read(tmp_path, json.dumps(old) + "\n")
    (row,) = run.records.iter_rows(named=True)
    assert (row["start_us"], row["end_us"]) == (START_US + 1_000_000, START_US + 1_500_000)
    assert (row["exact"], row["step"]) == (False, 1)
    assert (run.health.headerless, run.health.local_times) == (1, 1)


def test_a_file_with_only_instant_events_is_read(tmp_path: Path) -> None:
    lag = line("event_loop_lag", workid=0, step=0, task=0, extra={"lag_sec": 0.1})
    put(tmp_path, "step_0/trainer_0.jsonl", opened("a", 1) + lag + opened("a", 2) + lag)
    put(tmp_path, "step_1/worker_0.jsonl", opened("a", 1) + span(step=1, workid=0))
    run = open_run(tmp_path)
    assert run.health.records == 3
    assert run.digest.steps["step"].to_list() == [1]


def test_the_newest_run_of_a_step_wins_and_the_other_is_named(tmp_path: Path) -> None:
    put(tmp_path, "step_1/worker_0.jsonl", opened("first", 0) + span("kept"))
    put(
        tmp_path,
        "step_2/worker_0.jsonl",
        opened("first", 5) + span("old") + opened("second", 9) + span("new"),
    )
    put(tmp_path, "step_2/worker_1.jsonl", opened("first", 5) + span("old") + span("old"))
    run = open_run(tmp_path)
    assert sorted(run.records["event"].cast(str)) == ["kept", "new"]
    assert run.health.runs == ["first", "second"]
    assert run.health.older == {"first": 3}
    assert "3 records of older runs left out (first)" in run.health.sentence()


def test_a_second_process_of_the_same_rank_is_read_and_its_tasks_are_others(tmp_path: Path) -> None:
    inner = span("inner", start_us=START_US + 100_000, duration_sec=0.1)
    put(tmp_path, "step_1/worker_3.jsonl", opened("r", 0) + span("outer"))
    put(tmp_path, "step_1/worker_3.node-1.cluster-4711.jsonl", opened("r", 0) + inner)
    run = open_run(tmp_path)
    assert run.worker_ranks == [3]
    assert run.spans["parent"].to_list() == [None, None]


def test_processes_that_cannot_know_the_step_have_none(tmp_path: Path) -> None:
    put(tmp_path, "engine/scheduler_0_tp0.jsonl", span("scheduler_batch"))
    run = read(tmp_path, span("a"))
    (row,) = run.records.filter(event="scheduler_batch").iter_rows(named=True)
    assert (row["role"], row["worker"], row["step"]) == ("scheduler", 0, None)
    assert run.worker_ranks == [0]


def test_validation_is_kept_apart_from_training(tmp_path: Path) -> None:
    put(tmp_path, "validate_4/worker_0.jsonl", span("a", validate=True, step=4))
    run = read(tmp_path, span("a"))
    assert run.steps == [1]
    assert run.records.filter(validate=True)["step"].to_list() == [4]


def test_a_file_that_is_no_log_is_listed_as_not_read(tmp_path: Path) -> None:
    put(tmp_path, "step_1/notes.jsonl", "{}\n")
    put(tmp_path, "step_1/picture.png", b"\x89PNG")
    put(tmp_path, "plots/worker_0.jsonl", span("b"))
    put(tmp_path, "processes/worker_0.json", "{}")
    run = read(tmp_path, span("a"))
    assert events(run) == ["a"]
    assert run.health.ignored == ["step_1/notes.jsonl", "plots/", "step_1/picture.png"]


def test_steps_without_their_closing_record_are_named(tmp_path: Path) -> None:
    closed = line("step_closed", extra={"written": 1, "dropped": 3, "sampled_out": 4})
    put(tmp_path, "step_2/worker_1.jsonl", opened("r", 0) + span("a"))
    run = read(tmp_path, opened("r", 0) + span("a") + closed)
    assert run.health.unclosed == [(2, False, 1)]
    assert (run.health.dropped, run.health.sampled_out) == (3, 4)
    assert "not closed: step 2 worker 1" in run.health.sentence()
    assert "3 dropped by the writer" in run.health.sentence()


def test_a_step_that_ends_several_times_is_counted_once(tmp_path: Path) -> None:
    def closed(dropped: int, sampled_out: int) -> str:
        return line("step_closed", extra={"written": 9, "dropped": dropped, "sampled_out": sampled_out})

    # The step ended three times, with the counts so far; then its file was opened again for late records.
    log = opened("r", 0) + span("a") + closed(1, 2) + span("a") + closed(1, 5) + span("a") + closed(3, 7)
    run = read(tmp_path, log + opened("r", 9) + span("late") + closed(0, 1))
    assert (run.health.dropped, run.health.sampled_out) == (3, 8)
    assert run.health.unclosed == []
    assert events(run) == ["a", "a", "a", "late"]


def test_a_folder_that_is_no_run_is_refused_with_the_nearest_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("gsm8k_600", "math_2k"):
        put(tmp_path, f"logs/{name}/step_1/worker_0.jsonl", span("a"))
    (tmp_path / "empty").mkdir()
    put(tmp_path, "other/readme.txt", "x")
    put(tmp_path, "opened/step_1/worker_0.jsonl", "")
    put(tmp_path, "reached/processes/reached/host-1.json", "{}")
    for path, said in {
        "logs/gsm8k_60": "no such folder; did you mean logs/gsm8k_600?",
        "gsm8k_600": "did you mean logs/gsm8k_600?",
        "nowhere": "there are: opened, reached, logs/gsm8k_600, logs/math_2k",
        "logs": "holds 2 experiments; name one: logs/gsm8k_600, logs/math_2k",
        "other/readme.txt": "is no log that can be read",
        "empty": "the folder is empty",
        "other": "not a run",
        "logs/math_2k/step_1": "it may be logs/math_2k",
        "opened": "no records yet",
        "reached": "no records yet; `sglang-instrument status reached` says which processes were reached",
    }.items():
        with pytest.raises(LogError) as refused:
            open_run(path)
        assert said in str(refused.value)


def test_a_folder_of_one_experiment_means_that_experiment(tmp_path: Path) -> None:
    put(tmp_path, "logs/only/step_1/worker_0.jsonl", span("a"))
    assert open_run(tmp_path / "logs").folder == tmp_path / "logs" / "only"


def test_a_compressed_file_cut_short_gives_the_lines_it_holds(tmp_path: Path) -> None:
    lines = [span(extra={"turn": number, "request_id": f"{number * 7919:x}"}) for number in range(5000)]
    squeezed = zstandard.compress("".join(lines).encode())
    put(tmp_path, "step_1/worker_0.jsonl.zst", squeezed[: len(squeezed) // 2])
    run = open_run(tmp_path)
    assert run.records.sort("position")["turn"].to_list() == [*range(len(run.records))]
    assert 100 < len(run.records) < 5000
    assert run.health.torn == 1
