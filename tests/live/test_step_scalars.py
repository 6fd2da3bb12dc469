"""The numbers of a step equal those of the commands, and what a step does not tell is left out."""

import json

import pytest
from hand_written import record, request, step_of, write_file

from sglang_instrument.analysis import open_run, paths_of, step_ledger
from sglang_instrument.analysis.outlook.whole_run import forecast_run
from sglang_instrument.live import finished
from sglang_instrument.live.analyst import Question
from sglang_instrument.live.finished import Finished
from sglang_instrument.live.scalars import step_done
from sglang_instrument.testing import synthetic_run


def scalars(folder, step=1):
    [answer] = Finished(folder).answers(Question({f"step_{step}": []}))
    assert answer.failed is None
    return {} if answer.step is None else answer.step.scalars


def test_steps_that_are_asked_for_together_have_the_numbers_that_each_has_alone(made):
    steps = {f"step_{step}": [f"step_{step + 1}"] for step in (1, 2, 3)}
    [*together] = Finished(made).answers(Question(steps))
    assert [answer.folder for answer in together] == list(steps)
    for answer in together:
        [alone] = Finished(made).answers(Question({answer.folder: steps[answer.folder]}))
        assert answer.step.requests == alone.step.requests == 64
        assert answer.step.scalars == pytest.approx(alone.step.scalars, abs=0.02)  # clocks, as below


def test_a_step_that_cannot_be_analysed_does_not_cost_those_that_are_asked_for_with_it(made, monkeypatch):
    def odd(ledgers, row, files):
        if row["step"] == 2:
            raise ValueError("odd")
        return step_done(ledgers, row, files)

    monkeypatch.setattr(finished, "step_done", odd)
    answers = Finished(made).answers(Question({f"step_{step}": [] for step in (1, 2, 3)}))
    assert [(answer.step and answer.step.step, answer.failed) for answer in answers] == [
        (1, None),
        (None, "step_2 cannot be analysed: ValueError('odd')"),
        (3, None),
    ]


def call(name, start, end, **extra):
    """Return an engine call in the task of a request."""
    fields = {"request_id": name, "turn": 0, **extra}
    return record("turn_engine_call", start, end, extra=fields, task=1 + sum(map(ord, name)))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return synthetic_run(tmp_path_factory.mktemp("made") / "run", steps=3, workers=4, requests=16)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_the_numbers_are_those_of_summary(made, step):
    numbers, run = scalars(made, step), open_run(made, cached=False)
    [row] = run.summary().filter(step=step).rows(named=True)
    assert numbers["step_sec"] == row["duration_sec"]
    assert numbers["requests"] == row["requests"] == 64
    assert numbers["request_p50_sec"] == row["p50_sec"]
    assert numbers["request_p99_sec"] == row["p99_sec"]
    assert numbers["tail_share"] == row["straggler_share"]
    assert numbers["tokens_per_sec"] == row["response_tokens"] / row["duration_sec"]


def test_the_shares_are_those_of_the_ledger_until_the_step_ends(made):
    numbers = scalars(made, 2)
    shares = {name: value for name, value in numbers.items() if name.startswith("share_")}
    assert sum(shares.values()) == pytest.approx(1)
    spent = step_ledger(paths_of(open_run(made, cached=False))).filter(step=2)
    spent = spent.filter(spent["part"] != "between steps")
    engine = spent.filter(part="engine")["sec"].sum() / spent["sec"].sum()
    assert shares["share_engine"] == pytest.approx(engine, abs=0.01)  # the clocks are known by fewer barriers
    assert "share_between_steps" not in shares


def test_what_is_not_known_is_left_out(tmp_path):
    write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)))
    numbers = scalars(tmp_path)
    assert numbers["step_sec"] == 10
    assert numbers["requests"] == 1
    write_file(tmp_path, 2, 0, step_of())  # as with detail="step"
    assert not {"requests", "request_p50_sec", "tail_share"} & scalars(tmp_path, 2).keys()
    unknown = {"tokens", "tokens_per_sec", "tool_p99_sec", "queue_share", "cache_hit_share", "staleness"}
    assert not unknown & numbers.keys()
    write_file(tmp_path, 3, 0, step_of(request("a", 0, 4, response_length=10)))  # nothing says why it ended
    assert not {"tokens_aborted", "tokens_filtered", "exposed_reward_sec"} & scalars(tmp_path, 3).keys()
    assert "straggler_sec" not in numbers  # of a single worker
    assert all(isinstance(value, (int, float)) for value in numbers.values())


def test_the_straggler_is_the_worker_that_the_others_waited_for(tmp_path):
    for worker, busy in enumerate([4, 9, 7]):
        waits = record("barrier_wait_duration", busy, 10, task=0)
        write_file(tmp_path, 1, worker, [request("a", 0, busy), waits, *step_of()])
    numbers = scalars(tmp_path)
    assert numbers["straggler_worker"] == 1
    assert numbers["straggler_sec"] == pytest.approx(9)  # 6 s and 3 s
    for worker in (0, 1):
        write_file(tmp_path, 2, worker, step_of(request("a", 0, 4)))
    numbers = scalars(tmp_path, 2)
    assert numbers["straggler_sec"] == 0
    assert "straggler_worker" not in numbers


def test_tokens_of_aborted_failed_and_filtered_requests_are_thrown_away(tmp_path):
    filtered = {"group_index": 7, "kept": False}
    write_file(
        tmp_path,
        1,
        0,
        step_of(
            request("kept", 0, 4, response_length=100, group_index=6),
            request("aborted", 0, 5, response_length=30, finish_reason="abort", group_index=7),
            request("dropped", 0, 6, response_length=50, group_index=7),
            {**request("failed", 0, 6, response_length=8), "error": "ValueError"},
            record("group_filter", 6, 7, extra=filtered, task=0),
            record("group_filter", 7, 8, extra={"group_index": 6, "kept": True}, task=0),
        ),
    )
    numbers = scalars(tmp_path)
    assert numbers["tokens"] == 188
    assert numbers["tokens_aborted"] == 38
    assert numbers["tokens_filtered"] == 50


def test_the_engine_is_as_the_calls_report_it(tmp_path):
    reports = [
        {"prompt_tokens": 100, "cached_tokens": 80, "queue_time": 1.0, "e2e_latency": 4.0},
        {"prompt_tokens": 300, "cached_tokens": 20, "queue_time": 0.0, "e2e_latency": 4.0},
        {"prompt_tokens": 50, "queue_time": None},
    ]
    versions = ["3", "5", "default"]
    calls = [
        call(name, 0, 4, weight_version=version, **report)
        for name, report, version in zip("abc", reports, versions, strict=True)
    ]
    write_file(tmp_path, 1, 0, step_of(*calls, *(request(name, 0, 4) for name in "abc")))
    numbers = scalars(tmp_path)
    assert numbers["cache_hit_share"] == 0.25
    assert numbers["queue_share"] == 0.125
    assert numbers["staleness"] == 1  # one call of two is two versions behind


def test_rewards_on_the_critical_path_are_exposed_and_others_are_not(tmp_path):
    rewards = [
        record("reward_calculation", 1, 2, extra={"request_id": "a"}, task=98),
        record("reward_calculation", 8, 9, extra={"request_id": "b"}, task=99),
    ]
    write_file(tmp_path, 1, 0, step_of(*rewards, request("a", 0, 2), request("b", 0, 9)))
    assert scalars(tmp_path)["exposed_reward_sec"] == pytest.approx(1)


def test_lost_records_and_torn_lines_are_counted(tmp_path):
    path = write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)))
    path.write_text(path.read_text().replace('"dropped":0', '"dropped":3') + '{"timestamp":"2026')
    assert scalars(tmp_path)["records_lost"] == 4


def test_records_of_an_earlier_launch_and_of_no_step_do_not_count(tmp_path):
    write_file(tmp_path, 1, 0, step_of(*(request(f"old{n}", 0, 4) for n in range(5))), run_id="before")
    path = write_file(tmp_path, 1, 0, step_of(request("new", 0, 4)))
    lines = path.read_text().splitlines()
    moved = [line.replace("2026-01-05", "2026-01-06") if '"now"' in line else line for line in lines]
    path.write_text("\n".join(moved) + "\n")
    assert scalars(tmp_path)["requests"] == 1
    path = write_file(tmp_path, 0, 0, step_of(request("b", 0, 4)))
    header, *rest = path.read_text().splitlines()
    unbound = {**json.loads(header), "extra": {"log_version": 1, "run_id": "now", "step_bound": False}}
    path.write_text("\n".join([json.dumps(unbound), *rest]) + "\n")
    assert scalars(tmp_path, 0) == {}
    assert scalars(tmp_path, 2) == {}


def test_hostile_values_in_a_record_do_no_harm(tmp_path):
    hostile = [
        {"prompt_tokens": "many", "cached_tokens": 3},
        {"prompt_tokens": True, "cached_tokens": -1, "weight_version": [1], "group_index": {"a": 1}},
        {"kept": False, "group_index": None, "weight_version": "9" * 5000},
    ]
    calls = [call(name, 0, 4, **extra) for name, extra in zip("abc", hostile, strict=True)]
    write_file(tmp_path, 1, 0, step_of(*calls, request("a", 0, 4)))
    numbers = scalars(tmp_path)
    assert "cache_hit_share" not in numbers
    assert numbers["requests"] == 1


def test_hours_left_are_foretold_from_the_sixth_step_on_and_from_anew_after_a_restart(tmp_path):
    folder = synthetic_run(tmp_path / "run", steps=9, workers=2, requests=4, seed=4)
    described = {"run_id": open_run(folder, cached=False).files[0].runs[0], "role": "driver", "pid": 1}
    described["configuration"] = {"config": {"trainer.total_training_steps": 100}}
    (folder / "processes").mkdir()
    (folder / "processes" / "driver.json").write_text(json.dumps(described))
    read = Finished(folder)
    numbers = {}
    for step in range(1, 10):
        [answer] = read.answers(Question({f"step_{step}": [f"step_{step + 1}"]}))
        numbers[step] = {name: n for name, n in answer.step.scalars.items() if name.startswith("left_")}
    assert [step for step, left in numbers.items() if left] == [6, 7, 8, 9]
    for left in filter(None, numbers.values()):
        assert 0 < left["left_hours_low"] < left["left_hours"] < left["left_hours_high"]
    whole = forecast_run(open_run(folder, cached=False)).left_sec / 3600
    assert numbers[9]["left_hours_low"] < whole < numbers[9]["left_hours_high"]
    [again] = read.answers(Question({"step_3": ["step_4"]}))
    assert "left_hours" not in again.step.scalars
