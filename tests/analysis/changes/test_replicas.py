"""Servers that are added or taken away: the replay at several engines, and what the loop gains by it."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_instrument.analysis.changes.replaying.replay import ReplayedCall, ReplayedRequest, replay
from sglang_instrument.analysis.changes.replaying.serving import Serving, serving_of
from sglang_instrument.analysis.changes.replicas import Replicas, with_replicas
from sglang_instrument.analysis.ledger.engine_speed import EngineSpeed
from sglang_instrument.analysis.ledger.loop_of_run import loop_of
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.errors import InstrumentError
from sglang_instrument.testing import Engine, Workload
from sglang_instrument.testing.run_shape import RunShape
from sglang_instrument.testing.simulation.trainer import Trainer
from sglang_instrument.testing.synthetic import write_run


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1, 50), min_size=1, max_size=15), st.integers(1, 4), st.integers(1, 3))
def test_calls_that_come_at_once_end_as_a_plain_queue_at_each_engine_has_it(
    work: list[float], engines: int, limit: int
) -> None:
    # A constant speed, and engines that get every n-th call: each slot takes the next one in its queue.
    speed = EngineSpeed(token_sec=0.01)
    made = [
        ReplayedRequest(0.0, [ReplayedCall(1e-6 * number, 0.0, tokens)], 0.0)
        for number, tokens in enumerate(work)
    ]
    ends = []
    free = [[0.0] * limit for _ in range(engines)]
    for number, tokens in enumerate(work):
        slots = free[number % engines]
        slot = slots.index(min(slots))
        slots[slot] = max(slots[slot], 1e-6 * number) + 0.01 * tokens
        ends.append(slots[slot])
    assert replay(made, speed, limit, engines) == pytest.approx(ends, abs=1e-4)


def shape(limit: int, **trainer: object) -> RunShape:
    """Return runs whose one engine has twice the slots: as two engines behind an ideal router."""
    usual = {"sec": 10.0, "recorded": True, "weights_sec": 1.0, **trainer}
    return RunShape(
        steps=6,
        workers=2,
        requests=24,
        seed=11,
        engine=Engine(token_sec=0.02, most_running=limit, shared=True),
        workload=Workload(tokens_log=4.5, tokens_sigma=0.6),
        trainer=Trainer(**usual),  # type: ignore[arg-type]
    )


def predicted(folder: Path, more: int, made: RunShape, **known: int) -> Replicas:
    run = Run.open(write_run(folder, made), cached=False)
    return with_replicas(loop_of(run), more, **known)


@pytest.mark.parametrize("trainer", [{}, {"overlaps": True}], ids=["synchronous", "one step off"])
def test_one_more_server_saves_what_a_run_with_twice_the_slots_takes_less(trainer, tmp_path: Path) -> None:
    prediction = predicted(tmp_path / "one", 1, shape(8, **trainer), recorded=1, running=8)
    assert (prediction.recorded, prediction.source, prediction.servers, prediction.limit) == (1, "told", 2, 8)
    run = Run.open(write_run(tmp_path / "two", shape(16, **trainer)), cached=False)
    real = loop_of(run).mean()["to_next_step_sec"]
    assert prediction.mean["to_next_step_sec"] - prediction.mean["saved_sec"] == pytest.approx(real, rel=0.05)
    assert prediction.mean["saved_sec"] > 0.2 * prediction.mean["to_next_step_sec"]


def test_the_limit_that_is_fitted_says_about_the_same(tmp_path: Path) -> None:
    fitted = predicted(tmp_path, 1, shape(8), recorded=1)
    assert fitted.limit == pytest.approx(8, abs=2)


def test_the_engines_own_logs_tell_how_many_servers_there_are_and_what_they_run_at_once(
    tmp_path: Path,
) -> None:
    made = shape(6)
    apart = replace(made, engine=replace(made.engine, shared=False), engine_clocks={0: 0.0, 1: 3.0})
    run = Run.open(write_run(tmp_path / "logged", apart), cached=False)
    assert serving_of(run) == Serving(2, 6)
    prediction = with_replicas(loop_of(run), 1, serving_of(run))
    assert (prediction.recorded, prediction.source, prediction.limit) == (2, "log", 6)
    bare = Run.open(write_run(tmp_path / "bare", made), cached=False)
    assert serving_of(bare) == Serving(None, None)


def test_a_server_less_costs_and_none_left_is_an_error(tmp_path: Path) -> None:
    prediction = predicted(tmp_path, -1, shape(16), recorded=2, running=8)
    assert prediction.mean["saved_sec"] < 0
    run = Run.open(tmp_path, cached=False)
    with pytest.raises(InstrumentError, match=r"--replicas -2: the run has 2 servers"):
        with_replicas(loop_of(run), -2, recorded=2)


def test_a_rollout_that_the_trainer_never_waits_for_saves_nothing(tmp_path: Path) -> None:
    prediction = predicted(tmp_path, 1, shape(8, overlaps=True, sec=200.0), recorded=1, running=8)
    assert prediction.mean["rollout_saved_sec"] > 1
    assert prediction.mean["saved_sec"] == pytest.approx(0, abs=1e-6)


def test_without_the_trainer_only_the_rollout_is_predicted(tmp_path: Path) -> None:
    prediction = predicted(tmp_path, 1, shape(8, recorded=False), recorded=1, running=8)
    assert prediction.mean["rollout_saved_sec"] > 1
    assert prediction.mean["saved_sec"] is None


def test_engines_of_workers_are_counted_and_calls_without_tokens_are_an_error(tmp_path: Path) -> None:
    apart = shape(8)
    prediction = predicted(tmp_path / "apart", 1, replace(apart, engine=replace(apart.engine, shared=False)))
    assert (prediction.recorded, prediction.source) == (2, "workers")
    folder = write_run(tmp_path / "few", apart)
    for path in folder.rglob("worker_*.jsonl"):
        path.write_text(
            path.read_text().replace("generated_tokens", "not_known").replace("response_tokens", "no")
        )
    run = Run.open(folder, cached=False)
    with pytest.raises(InstrumentError, match="log generated_tokens"):
        with_replicas(loop_of(run), 1)
