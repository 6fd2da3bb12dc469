"""A world is repeatable, its spans nest, `check` takes its log, and its faults cost time."""

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from worlds import small_shape, small_world

from sglang_instrument.cli.main import main
from sglang_instrument.testing.world.faults import FAULTS
from sglang_instrument.testing.world.faults.fault import WorldFault
from sglang_instrument.testing.world.play import cost_of, play, walls, write_world
from sglang_instrument.testing.world.rollout.shape import (
    ASYNCHRONOUS,
    DRAINED,
    FAMILIES,
    OVERSAMPLED,
    OWN,
    ROUTED,
)


def records_of(stage, place):
    """Yield the records of the files in a place: "step", "engine"."""
    for name, records in stage.records.files.items():
        if name.startswith(place):
            yield from records


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_shape_plays_the_same_world(family):
    assert play(small_shape(family)).records.files == small_world(family).records.files


@pytest.mark.parametrize("family", FAMILIES)
def test_each_call_is_served_once_and_makes_what_its_caller_says(family):
    stage = small_world(family)
    asked = {
        record.extra["rid"]: record
        for record in records_of(stage, "step")
        if record.event == "engine_async_generate_actual" and record.extra["generated_tokens"]
    }
    answered = {
        record.extra["rid"]: record
        for record in records_of(stage, "engine")
        if record.event == "engine_request"
    }
    assert len(asked) > 20
    for rid, call in asked.items():
        served = answered[rid]
        assert served.extra["completion_tokens"] == call.extra["generated_tokens"]
        assert call.begin < served.begin < served.end < call.end


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_request_does_fills_its_time(family):
    stage = small_world(family)
    parts, requests = defaultdict(list), {}
    for record in records_of(stage, "step"):
        if record.event == "async_rollout_request_complete":
            requests[record.extra["request_id"]] = record
        elif record.event in ("pending_state_handling", "turn_end", "tool_calling_state", "finalization"):
            parts[record.extra["request_id"]].append((record.begin, record.end))
    assert requests
    for request_id, request in requests.items():
        spans = sorted(parts[request_id])
        assert all(first[1] <= second[0] + 1e-9 for first, second in pairwise(spans))
        assert request.begin <= spans[0][0]
        assert spans[-1][1] <= request.end
        covered = sum(end - begin for begin, end in spans)
        assert request.end - request.begin - covered < 0.01


@pytest.mark.parametrize("family", FAMILIES)
def test_check_takes_the_log_of_a_world(family, tmp_path, capsys):
    write_world(tmp_path / "run", small_world(family))
    code = main(["check", str(tmp_path / "run"), "--json"])
    printed = json.loads(capsys.readouterr().out)
    health = printed["health"]
    if family in (ASYNCHRONOUS, DRAINED):  # a worker that begins no group under a version has no file of it
        health = {**health, "missing": []}
    else:
        assert code == 0, printed
    wrong = (
        "torn",
        "foreign",
        "unreadable",
        "newer",
        "dropped",
        "missing",
        "unclosed",
        "headerless",
        "unfit",
    )
    assert {name: health[name] for name in wrong if health[name]} == {}
    assert printed["open"] == []


def test_clocks_of_hosts_differ_where_the_world_says_so(tmp_path):
    shape = small_shape(ROUTED)
    hosts = shape.servers + shape.workers + 1
    stage = play(replace(shape, skew_sec=tuple(float(host) for host in range(hosts))))
    write_world(tmp_path, stage)
    begins = {}
    for name in ("engine/server_0", "engine/server_1"):
        first = json.loads((tmp_path / f"{name}.jsonl").read_text().splitlines()[1])
        true = min(stage.records.files[name], key=lambda record: (record.end, -record.begin))
        begins[name] = first["start_us"] / 1e6 - true.begin
    assert begins["engine/server_1"] - begins["engine/server_0"] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_can_be_planted_and_names_where_it_is(name):
    kind = FAULTS[name]
    plain = small_shape(kind.families[0])
    shape = kind.needs(plain)
    usual = walls(small_world(kind.families[0]) if shape == plain else play(shape))
    fault = WorldFault(name, kind, kind.sizes[2], shape, usual)
    stage = play(shape, [fault])
    cost = cost_of(usual, walls(stage), fault)
    assert stage.records.files != {}
    assert cost.sec > -0.2 * sum(usual.values())  # what other draws of the router give and take
    truth = fault.truth
    assert truth.parts
    assert (truth.server is not None) == (kind.place == "server")
    assert (truth.worker is not None) == (
        kind.place == "worker" or (shape.family == OWN and kind.place == "server")
    )


def test_a_slow_server_costs_about_what_its_slowness_says():
    shape = replace(small_shape(ROUTED), router="sticky", jitter=0.0, servers=2, machine_speed=(1.0, 1.0))
    usual = walls(play(shape))
    fault = WorldFault(
        "server: slow decode in a step", FAULTS["server: slow decode in a step"], 3.0, shape, usual
    )
    planted = walls(play(shape, [fault]))
    (step,) = fault.steps
    assert planted[step] > 1.3 * usual[step]
    assert all(planted[other] == pytest.approx(usual[other], rel=0.1) for other in usual if other < step)


def test_weights_that_drain_wait_for_a_long_reply():
    name = "weights: wait for one long reply"
    shape = FAULTS[name].needs(small_shape(DRAINED))
    usual = walls(play(shape))
    fault = WorldFault(name, FAULTS[name], 1.0, shape, usual)
    stage = play(shape, [fault])
    drains = [record for record in records_of(stage, "engine") if record.event == "generation_drain"]
    assert max(record.end - record.begin for record in drains) > 0.3 * fault.wall_sec


def test_over_sampling_aborts_what_is_left():
    stage = small_world(OVERSAMPLED)
    reasons = [
        record.extra["finish_reason"]
        for record in records_of(stage, "step")
        if record.event == "async_rollout_request_complete"
    ]
    assert "abort" in reasons
    assert "stop" in reasons
