"""A cause costs what it should, where it should, and changes no draw of anything else."""

import json
import re
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path

import pytest

from sglang_instrument import testing
from sglang_instrument.analysis import open_run
from sglang_instrument.testing import (
    BlockedLoop,
    ColdStart,
    Death,
    Engine,
    Gap,
    Growth,
    LongReplies,
    LongReply,
    MissingFile,
    RunShape,
    SlowCall,
    SlowCalls,
    SlowEngine,
    SlowInteractions,
    SlowPart,
    SlowReward,
    SlowTools,
    StandStill,
    Trainer,
    Workload,
    synthetic_run,
)
from sglang_instrument.testing.causes.base import Cause
from sglang_instrument.testing.kinds import KINDS, Kind, cost_of, sized
from sglang_instrument.testing.run_shape import PlayedStep, play_run

SHAPE = RunShape(steps=3, workers=3, requests=6, seed=4)
QUEUEING = replace(SHAPE, engine=Engine(0.01, 1e-3, 1e-5, most_running=4))


def played(shape: RunShape, *causes: Cause) -> list[PlayedStep]:
    return list(play_run(shape, causes))


def longer(shape: RunShape, step: int, *causes: Cause) -> float:
    """By how many seconds causes lengthen a step."""
    before, after = played(shape), played(shape, *causes)
    return after[step - 1].wall_sec - before[step - 1].wall_sec


def of_event(step: PlayedStep, worker: int, event: str) -> list[float]:
    return [
        event_record.end - event_record.start
        for event_record in step.workers[worker].happened
        if event_record.event == event
    ]


@pytest.mark.parametrize(
    "cause",
    [
        SlowReward(2, None, 7.0),
        SlowPart(2, None, 7.0),
        SlowPart(2, 1, 7.0, "padding_duration"),
        SlowPart(2, None, 7.0, "broadcast_duration"),
        Gap(2, 7.0),
        StandStill(2, None, 7.0, at_sec=1.0),
    ],
)
def test_what_all_wait_for_costs_the_step_all_its_seconds(cause: Cause) -> None:
    assert longer(SHAPE, 2, cause) == pytest.approx(7.0, abs=0.02)  # parts after the barrier vary
    assert longer(SHAPE, 1, cause) == longer(SHAPE, 3, cause) == 0


@pytest.mark.parametrize(
    "cause",
    [
        SlowReward(2, 1, 500.0),
        SlowPart(2, 1, 500.0),
        SlowPart(2, 1, 500.0, "sorting_duration"),
        StandStill(2, 1, 500.0, at_sec=0.0),
        SlowCalls(2, 1, 500.0, calls=6),
        BlockedLoop(2, 1, at_sec=0.0, seconds=500.0),
    ],
)
def test_what_one_worker_does_costs_the_step_what_it_is_later_than_the_last_other(cause: Cause) -> None:
    arrivals = [worker.arrival - played(SHAPE)[1].begin for worker in played(SHAPE)[1].workers]
    assert longer(SHAPE, 2, cause) == pytest.approx(500.0 + arrivals[1] - max(arrivals), abs=1e-3)


@pytest.mark.parametrize("shape", [SHAPE, QUEUEING])
def test_a_slow_engine_takes_so_many_times_as_long_for_each_call(shape: RunShape) -> None:
    shape = replace(shape, workload=Workload(most_turns=1))
    before, after = played(shape)[1], played(shape, SlowEngine(2, 1, 3.0))[1]
    event = "engine_async_generate_actual"
    assert sum(of_event(after, 1, event)) == pytest.approx(3 * sum(of_event(before, 1, event)), rel=2e-3)
    assert of_event(after, 0, event) == pytest.approx(of_event(before, 0, event))


def test_without_a_spread_of_pace_each_call_takes_the_usual_seconds_a_token() -> None:
    shape = replace(SHAPE, workload=Workload(pace_spread=0.0))
    for call in played(shape)[0].workers[0].calls:
        assert call.served.end - call.start == pytest.approx(call.tokens * shape.engine.token_sec)


def test_slow_tools_and_interactions_are_slower_by_their_seconds() -> None:
    before = played(SHAPE)[1]
    after = played(SHAPE, SlowTools(2, 1, 4.0), SlowInteractions(2, 1, 3.0))[1]
    for event, seconds in (("tool_call", 4.0), ("interaction_response", 3.0)):
        was = sorted(of_event(before, 1, event))
        assert was
        assert sorted(of_event(after, 1, event)) == pytest.approx([sec + seconds for sec in was])
        assert of_event(after, 0, event) == pytest.approx(of_event(before, 0, event))


@pytest.mark.parametrize(
    ("kind", "event"),
    [("tool", "tool_call"), ("reward", "reward_calculation"), ("engine", "engine_async_generate_actual")],
)
def test_a_slow_call_is_one_call(kind: str, event: str) -> None:
    after = of_event(played(SHAPE, SlowCall(2, 1, 900.0, kind))[1], 1, event)
    assert [sec > 899 for sec in after].count(True) == 1


def test_long_replies_are_as_fast_as_others() -> None:
    before, after = played(SHAPE)[1], played(SHAPE, LongReplies(2, None, 4.0))[1]
    for was, calls in zip(before.workers, after.workers, strict=True):
        tokens = [sum(call.tokens for call in worker.calls) for worker in (was, calls)]
        seconds = [sum(call.served.end - call.start for call in worker.calls) for worker in (was, calls)]
        assert tokens[1] == 4 * tokens[0]
        assert seconds[1] == pytest.approx(4 * seconds[0])


def test_one_long_reply_is_one() -> None:
    calls = played(SHAPE, LongReply(2, 1))[1].workers[1].calls
    assert [call.tokens for call in calls if call.tokens > 2048] == [10_000]


def test_growth_slows_each_step_more_than_the_one_before() -> None:
    shape = replace(SHAPE, workload=Workload(most_turns=1))
    before, after = played(shape), played(shape, Growth(0.5, "reward"))
    for index, factor in enumerate((1.0, 1.5, 2.0)):
        was = of_event(before[index], 0, "reward_calculation")
        assert of_event(after[index], 0, "reward_calculation") == pytest.approx([sec * factor for sec in was])


def test_a_cold_start_concerns_the_first_step_of_all_workers() -> None:
    cause = ColdStart(2.0, 5.0)
    before, after = played(SHAPE), played(SHAPE, cause)
    event = "preprocessing_duration"
    for worker in range(3):
        assert of_event(after[0], worker, event)[0] > of_event(before[0], worker, event)[0] + 3
    assert after[1].wall_sec == pytest.approx(before[1].wall_sec)


def test_a_cold_start_is_in_the_step_that_it_names() -> None:
    shape, cause = replace(SHAPE, first_step=10), ColdStart(2.0, 5.0, step=10)
    assert longer(shape, 1, cause) > 3
    assert cause.place == (10, None)


def test_no_cause_changes_another_step(tmp_path: Path) -> None:
    for name, kind in KINDS.items():
        concerned = kind.cause.place[0]
        if concerned is None or kind.step is None:
            continue
        shape = replace(kind.shape(0), steps=3, requests=4)
        cause = replace(kind.cause, **({"step": 2} if concerned != 1 else {}))  # type: ignore[type-var]
        before, after = played(shape), played(shape, cause)
        other = 2
        assert [call.tokens for worker in before[other].workers for call in worker.calls] == [
            call.tokens for worker in after[other].workers for call in worker.calls
        ], name
        assert after[other].wall_sec == pytest.approx(before[other].wall_sec), name


@pytest.mark.parametrize("name", ["engine-one", "engine-calls", "gap", "long-replies"])
def test_a_cause_is_sized_to_what_it_should_cost(name: str) -> None:
    kind = KINDS[name]
    shape = kind.shape(3)
    assert cost_of(kind, shape, sized(kind, shape, 0.25)) == pytest.approx(0.25, abs=0.02)


def test_a_cause_that_costs_nothing_has_no_size() -> None:
    shape = replace(SHAPE, workload=Workload(most_turns=1))
    kind = Kind(SlowInteractions(2, 1), step=2)  # there is no interaction with a single turn
    with pytest.raises(ValueError, match=r"SlowInteractions.* of any size makes step 2 less than 25% longer"):
        sized(kind, shape, 0.25)


def test_an_engine_twice_as_fast_is_a_replay_of_the_same_requests() -> None:
    shape = replace(QUEUEING, workload=Workload(most_turns=1))
    slow, fast = played(shape)[1], played(shape.replayed(engine=0.5))[1]
    for first, other in zip(slow.workers, fast.workers, strict=True):
        tokens = [sorted(call.tokens for call in step.calls) for step in (first, other)]
        assert tokens[0] == tokens[1] != []
        seconds = [sum(call.served.end - call.start for call in step.calls) for step in (first, other)]
        assert seconds[1] == pytest.approx(0.5 * seconds[0], rel=2e-3)


def test_slower_tools_are_a_replay_of_the_same_requests() -> None:
    before = played(SHAPE)[0]
    after = played(SHAPE.replayed(tools=3.0))[0]
    was, now = (of_event(step, 0, "tool_call") for step in (before, after))
    assert sorted(now) == pytest.approx(sorted(3 * sec for sec in was))


def test_a_cap_cuts_the_same_requests_and_ends_them() -> None:
    full, capped = (
        {(call.request_id, call.turn): call.tokens for call in step.workers[0].calls}
        for step in (played(SHAPE)[0], played(SHAPE.replayed(most_tokens=100))[0])
    )
    ended = {request: turn for (request, turn), tokens in reversed(full.items()) if tokens >= 100}
    assert any((request, turn + 1) in full for request, turn in ended.items())
    assert capped == {
        (request, turn): min(100, tokens)
        for (request, turn), tokens in full.items()
        if turn <= ended.get(request, turn)
    }


def test_a_capped_reply_calls_no_tool_and_says_so() -> None:
    [worker] = played(replace(SHAPE, steps=1, workers=1, workload=Workload(most_tokens=9)))[0].workers
    assert {call.turn for call in worker.calls} == {0}
    events = {event.event for event in worker.happened}
    assert not events & {"tool_call", "interaction_response", "turn_tool_parsing"}
    for event in worker.happened:
        if event.event == "async_rollout_request_complete":
            assert event.extra is not None
            assert (event.extra["finish_reason"], event.extra["turns"]) == ("length", 1)


def test_a_redrawn_run_has_other_requests_and_equal_causes() -> None:
    seconds = []
    for shape in (SHAPE, SHAPE.redrawn(5)):
        assert longer(shape, 2, SlowPart(2, None, 7.0)) == pytest.approx(7.0)
        seconds.append(played(shape)[1].wall_sec)
    assert seconds[0] != seconds[1]


def test_the_trainer_records_what_verl_records(tmp_path: Path) -> None:
    trainer = Trainer(sec=10.0, recorded=True)
    folder = synthetic_run(tmp_path, steps=2, workers=1, requests=2, trainer=trainer, causes=[Gap(1, 50.0)])
    spans = open_run(folder).spans.filter(role="trainer", step=1)
    seconds = dict(spans.select("event", "duration_sec").iter_rows())
    assert seconds["trainer_update_actor"] == pytest.approx(56.4)
    parts = [sec for event, sec in seconds.items() if event != "trainer_step"]
    assert seconds["trainer_step"] == pytest.approx(sum(parts), abs=1e-3)


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    synthetic_run(tmp_path, steps=3, workers=2, requests=2, causes=[MissingFile(2, 1)])
    assert open_run(tmp_path).health.missing == [(2, 1)]


@pytest.mark.parametrize("overlaps", [False, True])
def test_nothing_is_recorded_after_a_death(overlaps: bool, tmp_path: Path) -> None:
    # Each process has a clock of its own: the records are compared on that of the run.
    skew, ahead_sec = {0: 0.0, 1: 30.0}, 4.0
    synthetic_run(
        tmp_path,
        steps=4,
        workers=2,
        requests=8,
        trainer=Trainer(sec=60.0, recorded=True, overlaps=overlaps),
        validate_every=3,
        clock_skew=skew,
        engine_clocks=skew,
        causes=[Death(3, 1, ahead_sec=ahead_sec)],
    )
    assert sorted(path.name for path in tmp_path.glob("*_*")) == ["step_1", "step_2", "step_3"]
    ends: dict[str, float] = {}
    for path in tmp_path.rglob("*.jsonl"):
        header, *records = [json.loads(line) for line in path.read_text().splitlines()]
        ahead_sec_of_clock = (header["extra"]["wall_ns"] - header["extra"]["perf_ns"]) / 1e9
        stamps = [datetime.fromisoformat(record["timestamp"]).timestamp() for record in records]
        name = str(path.relative_to(tmp_path))
        ends[name] = max(stamps, default=ahead_sec_of_clock) - ahead_sec_of_clock
    dead_sec = ends["step_3/worker_1.jsonl"]
    assert dead_sec + ahead_sec - 2 < ends["step_3/worker_0.jsonl"]
    assert ends["step_3/trainer_0.jsonl"] == 0
    assert ends.pop("engine/scheduler_1.jsonl") <= dead_sec + 1
    assert max(ends.values()) <= dead_sec + ahead_sec + 1


def test_the_reference_lists_every_cause_with_its_fields_and_its_word() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/api.md").read_text()
    rows = re.findall(r"^\| `(\w+)\((.*?)\)` \|.*\| (.*) \|$", text, re.MULTILINE)
    listed = {
        name: (set(given.split(", ")), set(re.findall("`(.*?)`", words))) for name, given, words in rows
    }
    every = {
        name: kind
        for name, kind in vars(testing).items()
        if isinstance(kind, type) and issubclass(kind, Cause)
    }
    del every["Cause"]
    assert listed.keys() == every.keys()
    for name, (named, words) in listed.items():
        assert named <= {field.name for field in fields(every[name])}
        assert name == "SlowPart" or words == {every[name].cause} - {""}
