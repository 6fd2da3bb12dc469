"""The excess of a step lies in the parts that took it, and adds up exactly."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from made_workers import Step, Worker, written

from sglang_instrument.analysis import open_run, step_windows
from sglang_instrument.analysis.ledger import engine_speed
from sglang_instrument.analysis.ledger.engine_speed import fit_speed
from sglang_instrument.analysis.verdict.evidence.calls import calls_of
from sglang_instrument.analysis.verdict.excess import excess_table, slowest_step
from sglang_instrument.testing import SlowEngine
from sglang_instrument.testing.kinds import KINDS, sized
from sglang_instrument.testing.synthetic import synthetic_run, write_run


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("engine-all", "slower engine"),
        ("tool-all", "slower tools"),
        ("reward-all", "reward"),
        ("long-replies", "longer replies"),
        ("preprocess-all", "preprocess"),
        ("broadcast-all", "broadcast"),
        ("gap", "between steps"),
    ],
)
def test_the_excess_of_a_step_lies_in_the_part_that_took_it(name: str, part: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    shape = replace(kind.shape(0), requests=12)
    cause = sized(kind, shape, 1.0)
    run = open_run(write_run(tmp_path / "run", shape, [cause]), cached=False)
    excess = excess_table(run.digest, calls_of(run.digest), cause.place[0])
    assert excess["part"][0] == part


@pytest.mark.parametrize("until_next", [False, True])
def test_the_parts_add_up_to_the_step_to_the_usual_step_and_to_the_excess(
    until_next: bool, tmp_path: Path
) -> None:
    digest = open_run(synthetic_run(tmp_path, steps=5, workers=2, requests=8)).digest
    calls, windows = calls_of(digest), step_windows(digest)
    took = (
        windows.filter(~pl.col("is_last")).select("step", sec="to_next_step_sec")
        if until_next
        else windows.select("step", sec=(pl.col("done_us") - pl.col("begin_us")) / 1e6)
    )
    for step, sec in took.iter_rows():
        usual = took.filter(pl.col("step") != step)["sec"].median()
        excess = excess_table(digest, calls, step, until_next=until_next)
        assert excess["sec"].sum() == pytest.approx(sec, abs=1e-5)
        assert excess["usual_sec"].sum() == pytest.approx(usual, abs=1e-5)
        assert excess["excess_sec"].sum() == pytest.approx(sec - usual, abs=1e-5)


def test_a_few_engine_calls_usually_take_the_median_of_the_seconds_a_token() -> None:
    sec = [2.0, 2.0, 2.1, 1.9, 2.0, 20.0]
    place = {"run": 0, "source": 0, "step": 1, "validate": False, "worker": 0, "turn": 0, "context": 0.0}
    fields = {**place, "tokens": 100.0, "start_sec": 0.0}
    calls = pl.DataFrame(
        [
            {**fields, "request_id": str(number), "sec": duration, "end_sec": duration}
            for number, duration in enumerate(sec)
        ]
    )
    fit = fit_speed(calls)
    assert fit.speed.token_sec == pytest.approx(0.02)
    assert fit.calls["expected_sec"].to_list() == pytest.approx([2.0] * 6)


def test_of_very_many_calls_some_steps_tell_the_speed_and_all_calls_get_their_expected_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = {"run": 0, "source": 0, "validate": False, "worker": 0, "turn": 0, "context": 0.0}
    steps, calls = range(40), range(30)
    table = pl.DataFrame(
        [
            {**place, "step": step, "tokens": 10.0 * call, "request_id": str(call)}
            | {"start_sec": 100.0 * call, "sec": 1 + 0.2 * call, "end_sec": 100.0 * call + 1 + 0.2 * call}
            for step in steps
            for call in calls
        ]
    )
    whole = fit_speed(table)
    monkeypatch.setattr(engine_speed, "_ENOUGH_CALLS", 100)
    assert engine_speed.some_steps(table, 100)["step"].unique().to_list() == [0, 12, 24, 36]
    fit = fit_speed(table)
    assert tuple(fit.speed) == pytest.approx(tuple(whole.speed))
    assert fit.calls["expected_sec"].to_list() == pytest.approx(table["sec"].to_list())


def test_a_slower_engine_with_few_calls_is_no_longer_reply(tmp_path: Path) -> None:
    slow = SlowEngine(2, 0, 3.0)
    digest = open_run(synthetic_run(tmp_path, steps=3, workers=1, requests=2, causes=[slow])).digest
    calls = calls_of(digest)
    assert len(calls.filter(kind="engine")) < 20
    excess = excess_table(digest, calls, 2)
    assert excess["part"][0] == "slower engine"


def test_engine_time_whose_calls_are_unknown_accuses_no_engine(tmp_path: Path) -> None:
    steps = [
        Step({0: Worker(0, [[("engine_generate", length)]])}, 5, 0, False) for length in (10, 10, 30, 10)
    ]
    written(tmp_path, steps, {})
    digest = open_run(tmp_path).digest
    excess = excess_table(digest, calls_of(digest), 2)
    assert excess.row(0, named=True)["part"] == "engine"
    assert not {"slower engine", "longer replies"} & set(excess["part"])


def test_the_slowest_step_may_be_the_one_after_which_most_time_passed(tmp_path: Path) -> None:
    worker = Worker(0, [[("engine_generate", 60)]])
    written(tmp_path, [Step({0: worker}, gap, 0, False) for gap in (600, 10, 10)], {})
    digest = open_run(tmp_path).digest
    slowest = slowest_step(step_windows(digest))
    assert slowest is not None
    assert (slowest.step, slowest.until_next) == (0, True)
    assert slowest.times == pytest.approx(660 / ((660 + 70) / 2))
    excess = excess_table(digest, calls_of(digest), 0)
    assert excess.row(0, named=True)["part"] == "between steps"


def test_a_run_of_one_step_has_no_excess(tmp_path: Path) -> None:
    written(tmp_path, [Step({0: Worker(0, [[("engine_generate", 60)]])}, 5, 0, False)], {})
    digest = open_run(tmp_path).digest
    assert excess_table(digest, calls_of(digest), 0, until_next=False).is_empty()


def test_the_parts_of_an_only_step_are_an_empty_table_with_all_columns(tmp_path: Path) -> None:
    digest = open_run(synthetic_run(tmp_path, steps=1, workers=2, requests=4)).digest
    table = excess_table(digest, calls_of(digest), 1)
    assert table.is_empty()
    assert table.columns == ["part", "sec", "usual_sec", "excess_sec"]
