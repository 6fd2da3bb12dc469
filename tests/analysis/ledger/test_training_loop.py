"""The loop of trainer and rollout: each side adds up, and equals a count tick by tick."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from hypothesis import given, settings
from made_loops import (
    MadeLoop,
    Request,
    TrainerStep,
    in_flight,
    line,
    made_loops,
    trainer_ticks,
    write_lines,
    write_loop,
)
from made_steps import TICK_US

from sglang_instrument.analysis.ledger.loop import Loop, averages, steady
from sglang_instrument.analysis.ledger.loop_lanes import GENERATES, WORKS
from sglang_instrument.analysis.ledger.loop_of_run import loop_of
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.testing.simulation.trainer import Trainer
from sglang_instrument.testing.synthetic import write_run
from sglang_instrument.testing.usual_run import usual_shape

SEC = TICK_US / 1e6


def loop_in(folder: Path) -> Loop:
    return loop_of(Run.open(folder, cached=False))


def rollout_tick(loop: MadeLoop, trainer: str, tick: int) -> str:
    """Return the part of the rollout's lane in a tick; requests here do nothing but generate."""
    if trainer == "weight sync":
        return trainer
    if in_flight(loop, tick):
        return "generation"
    return "waiting for trainer" if trainer in WORKS else "not recorded"


@settings(max_examples=25, deadline=None)
@given(made_loops())
def test_both_sides_equal_a_count_of_each_tick(made: MadeLoop) -> None:
    ticks: dict[tuple[int, str, str], int] = defaultdict(int)
    both: dict[int, int] = defaultdict(int)
    begins = made.begins()
    for tick, trainer in enumerate(trainer_ticks(made)):
        step = sum(begin <= tick for begin in begins[:-1])
        rollout = rollout_tick(made, trainer, tick)
        ticks[step, "trainer", trainer] += 1
        ticks[step, "rollout", rollout] += 1
        both[step] += trainer in WORKS and rollout in GENERATES
    with TemporaryDirectory() as folder:
        loop = loop_in(write_loop(Path(folder), made))
        ledger, steps = loop.ledger(), loop.steps()
    found_ticks = {
        (row["step"], row["side"], row["part"]): round(row["sec"] / SEC) for row in ledger.to_dicts()
    }
    assert found_ticks == {key: count for key, count in ticks.items() if count}
    assert {row["step"]: round(row["both_work_sec"] / SEC) for row in steps.to_dicts()} == dict(
        zip(range(1, len(begins)), (both[step] for step in range(1, len(begins))), strict=True)
    )
    whole = ledger.group_by("step", "side").agg(pl.col("sec").sum()).join(steps, on="step")
    assert whole.select(((pl.col("sec") - pl.col("to_next_step_sec")).abs() < 1e-6).all()).item()


WAIT, TRAIN, SEND = "trainer_generate", "trainer_update_actor", "weights_update"


def steps_of(*events: tuple[str, int], times: int = 4) -> list[TrainerStep]:
    return [TrainerStep(list(events), 0)] * times


def test_taking_turns_is_synchronous_and_each_waits_while_the_other_works(tmp_path: Path) -> None:
    requests = [Request(step + 1, 20 * step, 20 * step + 12) for step in range(4)]
    made = MadeLoop(steps_of((WAIT, 12), (TRAIN, 6), (SEND, 2)), requests)
    loop = loop_in(write_loop(tmp_path, made))
    assert loop.shape() == "synchronous"
    row = loop.steps().row(1, named=True)
    names = ("to_next_step_sec", "rollout_sec", "train_sec", "both_work_sec", "weights_sec")
    assert [round(row[name] / SEC) for name in names] == [20, 12, 6, 0, 2]
    assert [round(row[f"{side}_waits_sec"] / SEC) for side in ("trainer", "rollout")] == [12, 6]


def test_a_rollout_that_runs_ahead_and_ends_before_weights_are_sent_is_one_step_off(tmp_path: Path) -> None:
    # The trainer takes the batch, sends weights, and trains while the next rollout runs for 10 ticks.
    requests = [Request(step + 1, 12 * step - 8, 12 * step + 2) for step in range(1, 4)]
    requests.insert(0, Request(1, 0, 2))
    made = MadeLoop(steps_of((WAIT, 2), (SEND, 2), (TRAIN, 8)), requests)
    loop = loop_in(write_loop(tmp_path, made))
    assert loop.shape() == "one step off"
    mean = averages(steady(loop.steps(), loop.shape()))
    assert round((mean["trainer_waits_sec"] or 0) / SEC) == 2
    assert mean["rollout_waits_sec"] == 0


def test_requests_in_flight_while_weights_are_sent_are_asynchronous(tmp_path: Path) -> None:
    requests = [Request(1 + number % 4, 3 * number, 3 * number + 9) for number in range(14)]
    made = MadeLoop(steps_of((WAIT, 1), (TRAIN, 8), (SEND, 2)), requests)
    loop = loop_in(write_loop(tmp_path, made))
    assert loop.shape() == "asynchronous"
    assert loop.ledger().filter(part="waiting for trainer").is_empty()


@pytest.mark.parametrize(
    ("more", "shape"),
    [
        ({}, "synchronous"),
        ({"overlaps": True}, "one step off"),
        ({"overlaps": True, "streams": True, "sec": 20.0}, "asynchronous"),
        ({"recorded": False}, None),
    ],
)
def test_a_synthetic_run_of_each_shape_is_told_as_what_it_is(more: dict, shape: str, tmp_path: Path) -> None:
    trainer = Trainer(**{"sec": 30.0, "jitter": 0.05, "weights_sec": 2.0, "recorded": True, **more})
    loop = loop_in(write_run(tmp_path, replace(usual_shape(3, steps=6), trainer=trainer)))
    assert loop.shape() == shape
    steps, ledger = loop.steps(), loop.ledger()
    whole = ledger.group_by("step", "side").agg(pl.col("sec").sum()).join(steps, on="step")
    assert len(whole) == 6 * (1 + (shape is not None))
    assert whole.select(((pl.col("sec") - pl.col("to_next_step_sec")).abs() < 1e-6).all()).item()
    trains = steps["train_sec"].to_list()
    if shape is None:
        assert trains == [None] * 6
    else:
        assert trains == pytest.approx([0.99 * trainer.sec] * 6, rel=0.06)


def test_rewards_are_exposed_where_nothing_else_goes_on_and_hidden_elsewhere(tmp_path: Path) -> None:
    requests = [
        Request(1, 0, 10, reward=4),  # behind the next one
        Request(1, 0, 14, reward=3),  # alone, at the end of the rollout
        Request(2, 20, 32, reward=2),  # alone
    ]
    made = MadeLoop(steps_of((WAIT, 14), ("trainer_reward", 2), (TRAIN, 4), times=2), requests)
    steps = loop_in(write_loop(tmp_path, made)).steps()
    rows = steps.select("reward_sec", "reward_alone_sec", "reward_overlapped_sec").rows()
    assert [[round(sec / SEC) for sec in row] for row in rows] == [[9, 5, 4], [4, 4, 0]]


def test_without_a_reward_in_the_log_its_seconds_are_not_known(tmp_path: Path) -> None:
    made = MadeLoop(steps_of((WAIT, 4), (TRAIN, 4)), [Request(1, 0, 4)])
    steps = loop_in(write_loop(tmp_path, made)).steps()
    for name in ("reward_sec", "reward_alone_sec", "reward_overlapped_sec"):
        assert steps[name].to_list() == [None] * 4
    assert steps["weights_sec"].to_list() == [None] * 4


def test_a_training_process_without_a_driver_waits_where_it_logs_nothing(tmp_path: Path) -> None:
    for step in (0, 1, 2):
        begin = 20 * step
        request = line("async_rollout_request_complete", begin, begin + 8, 1, request_id=f"r{step}")
        whole = line("total_step_duration", begin, begin + 9)
        write_lines(tmp_path / f"step_{step}" / "worker_0.jsonl", [request, whole])
        trained = [line(TRAIN, begin + 10, begin + 16), line("trainer_step", begin + 10, begin + 17)]
        write_lines(tmp_path / f"step_{step}" / "learner_0.jsonl", trained)
        write_lines(tmp_path / "engine/learner_0.jsonl", [line(SEND, begin + 17, begin + 19)])
        write_lines(tmp_path / "engine/learner_1.jsonl", [line(SEND, begin, begin + 19)])
    loop = loop_in(tmp_path)
    assert loop.shape() == "synchronous"
    parts = loop.ledger().filter(step=1, side="trainer").select("part", (pl.col("sec") / SEC).round())
    assert dict(parts.rows()) == {
        "update": 6,
        "weight sync": 2,
        "other": 1,
        "waiting for rollout": 9,
        "not recorded": 2,
    }


def test_a_validation_is_a_part_of_both_sides(tmp_path: Path) -> None:
    made = MadeLoop(
        steps_of((WAIT, 6), (TRAIN, 4), ("", 10)), [Request(s + 1, 20 * s, 20 * s + 6) for s in range(4)]
    )
    write_loop(tmp_path, made)
    tested = line("async_rollout_request_complete", 31, 38, 9, request_id="v")
    write_lines(tmp_path / "validate_2/worker_0.jsonl", [tested])
    write_lines(tmp_path / "validate_2/trainer_0.jsonl", [line("trainer_validate", 30, 39)])
    loop = loop_in(tmp_path)
    validation = loop.ledger().filter(step=2, part="validation").select("side", (pl.col("sec") / SEC).round())
    assert dict(validation.rows()) == {"trainer": 9, "rollout": 9}
    assert loop.steps().filter(step=2)["validation_sec"].item() == pytest.approx(9 * SEC)


def test_a_thread_that_waits_for_rollouts_does_not_hide_the_training_beside_it(tmp_path: Path) -> None:
    write_loop(tmp_path, MadeLoop(steps_of((TRAIN, 8), (SEND, 2), times=2), [Request(1, 0, 20)]))
    write_lines(tmp_path / "step_2/trainer_0.jsonl", [line(WAIT, 1, 10, task=7)])
    parts = (
        loop_in(tmp_path)
        .ledger()
        .filter(step=1, side="trainer")
        .select("part", (pl.col("sec") / SEC).round())
    )
    assert dict(parts.rows()) == {"update": 8, "weight sync": 2}


def test_a_trainer_without_workers_in_the_log_has_one_side(tmp_path: Path) -> None:
    write_loop(tmp_path, MadeLoop(steps_of((WAIT, 4), (TRAIN, 8)), []))
    loop = loop_in(tmp_path)
    assert loop.shape() is None
    assert set(loop.ledger()["side"]) == {"trainer"}
    assert loop.steps()["rollout_sec"].to_list() == loop.steps()["rollout_waits_sec"].to_list() == [None] * 4
    assert loop.steps()["trainer_waits_sec"].to_list() == pytest.approx([4 * SEC] * 4)


def test_weights_that_are_sent_before_the_first_step_are_no_step_and_a_long_first_one_decides_nothing(
    tmp_path: Path,
) -> None:
    requests = [
        Request(1, 0, 400),
        *(Request(s + 1, 402 + 12 * (s - 1), 412 + 12 * (s - 1)) for s in range(1, 5)),
    ]
    steps = [TrainerStep([(WAIT, 400), (SEND, 2), (TRAIN, 8)], 0)]
    steps += [TrainerStep([(WAIT, 2), (SEND, 2), (TRAIN, 8)], 0)] * 4
    write_loop(tmp_path, MadeLoop(steps, requests))
    write_lines(tmp_path / "step_0/trainer_0.jsonl", [line(SEND, -9, -3)])
    loop = loop_in(tmp_path)
    assert loop.steps()["step"].to_list() == [1, 2, 3, 4, 5]
    assert loop.shape() == "one step off"
