"""A slow server behind a router is named, by what of it is slow; no worker and no healthy server is."""

from dataclasses import replace

import pytest
from worlds import small_shape

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.verdict.verdict import findings_of
from sglang_instrument.testing.world.faults import FAULTS
from sglang_instrument.testing.world.faults.fault import WorldFault
from sglang_instrument.testing.world.play import play, walls, write_world
from sglang_instrument.testing.world.rollout.shape import (
    ASYNCHRONOUS,
    DRAINED,
    OVERSAMPLED,
    OWN,
    ROUTED,
    draw_shape,
)


def even(family, seed=1, **fields):
    """Return a world whose machines are equally fast."""
    shape = replace(draw_shape(family, seed), steps=5, **fields)
    return replace(shape, machine_speed=(1.0,) * shape.servers)


def world_findings(shape, folder, name=None, size=2):
    """Return the findings of a world, with its fault."""
    if name is None:
        write_world(folder, play(shape))
        return findings_of(open_run(folder, cached=False), over=True), None
    shape = FAULTS[name].needs(shape)
    fault = WorldFault(name, FAULTS[name], FAULTS[name].sizes[size], shape, walls(play(shape)))
    write_world(folder, play(shape, [fault]))
    return findings_of(open_run(folder, cached=False), over=True), fault


@pytest.mark.parametrize(
    ("name", "cause", "part"),
    [
        ("server: slow decode", "slow-server", "decode"),
        ("server: slow decode in a step", "slow-server", "decode"),
        ("server: throttled", "slow-server", "decode"),
        ("server: slow prefill", "slow-server", "prefill"),
        ("server: slow network", "slow-server", "network"),
        ("server: small limit", "queue", "queue"),
    ],
)
def test_a_slow_server_is_the_first_finding(name, cause, part, tmp_path):
    findings, fault = world_findings(even(ROUTED), tmp_path, name)
    first = findings[0]
    assert (first.cause, first.event) == (cause, part), first
    assert first.evidence["server"].endswith(str(fault.server))
    assert first.worker is None
    assert first.step in (None, *fault.steps)
    assert all(
        finding.worker is None
        for finding in findings
        if finding.event == "engine" and finding.cause == "engine"
    )


def test_a_server_without_a_prefix_cache_is_named_by_what_it_reads_again(tmp_path):
    findings, fault = world_findings(even(ROUTED, seed=3), tmp_path, "server: no prefix cache")
    first = findings[0]
    assert (first.cause, first.event) == ("slow-server", "reading")
    assert first.evidence["server"] == f"server_{fault.server}"


def test_a_server_that_stood_still_is_not_called_slow(tmp_path):
    findings, fault = world_findings(even(ROUTED), tmp_path, "server: cold in the first step")
    assert (findings[0].cause, findings[0].step) == ("standstill", fault.steps[0])
    assert [finding for finding in findings if finding.cause == "slow-server"] == []


def test_the_limit_of_a_workers_own_engine_is_named_as_its_queue(tmp_path):
    findings, fault = world_findings(even(OWN), tmp_path, "engine: small limit")
    first = findings[0]
    assert (first.cause, first.worker) == ("queue", fault.server)
    assert first.evidence["server"].endswith(str(fault.server))


def test_a_workers_long_way_to_its_servers_is_named_and_no_server(tmp_path):
    findings, fault = world_findings(even(ROUTED), tmp_path, "worker: slow way to the servers")
    first = findings[0]
    assert (first.cause, first.worker, first.event) == ("slow-way", fault.worker, "network")
    assert "server" not in first.evidence
    assert [finding for finding in findings if finding.cause in ("slow-server", "queue", "engine")] == []


@pytest.mark.parametrize("name", ["prompts: longer in a step", "turns: more in a step"])
def test_a_step_with_more_work_is_told_by_its_work(name, tmp_path):
    findings, fault = world_findings(even(ROUTED, seed=2), tmp_path, name)
    cause = {"prompts": "long-prompts", "turns": "more-turns"}[name.partition(":")[0]]
    assert (findings[0].cause, findings[0].step, findings[0].worker) == (cause, fault.steps[0], None)


def test_an_update_that_reaches_all_servers_late_is_named_beside_a_rollout(tmp_path):
    shape = draw_shape(DRAINED, 900)
    findings, fault = world_findings(shape, tmp_path, "weights: slow to all in a step")
    first = findings[0]
    assert (first.cause, first.step) == ("slow-update", fault.steps[0])
    assert first.lost_sec == pytest.approx(fault.wall_sec, rel=0.1)  # as much as the fault adds


def test_a_server_that_stands_still_costs_requests_that_flow(tmp_path):
    shape = draw_shape(ASYNCHRONOUS, 901)
    findings, fault = world_findings(shape, tmp_path, "server: cold in the first step")
    first = findings[0]
    assert (first.cause, first.step) == ("standstill", fault.steps[0])
    assert first.evidence["server"] == f"server_{fault.server}"
    # For so long it stood; its next gauge comes within a second.
    assert 0 < first.lost_sec <= fault.size * fault.wall_sec + 1.0


@pytest.mark.parametrize("family", [ASYNCHRONOUS, DRAINED])
def test_workers_that_take_groups_from_a_queue_begin_late_for_nobody(family, tmp_path):
    findings, _ = world_findings(draw_shape(family, 900), tmp_path)
    assert [finding for finding in findings if finding.lost_sec > 0 and finding.scope != "run"] == []


def test_a_slow_server_is_named_where_what_is_left_is_aborted(tmp_path):
    findings, fault = world_findings(even(OVERSAMPLED, seed=2), tmp_path, "server: slow decode in a step")
    assert findings[0].cause == "slow-server"
    assert findings[0].evidence["server"] == f"server_{fault.server}"


@pytest.mark.parametrize("seed", [1, 4])
def test_healthy_servers_are_not_named(seed, tmp_path):
    findings, _ = world_findings(even(ROUTED, seed=seed), tmp_path)
    assert [finding for finding in findings if finding.cause in ("slow-server", "queue")] == []


@pytest.mark.parametrize(
    ("name", "cause"), [("engine: slow decode", "engine"), ("worker: slow tools", "tool")]
)
def test_one_of_two_workers_that_is_always_slow_is_named(name, cause, tmp_path):
    shape = small_shape(OWN, 1)
    assert shape.workers == 2
    findings, fault = world_findings(replace(shape, groups=2 * shape.groups, steps=6), tmp_path, name)
    assert findings[0].cause == cause
    assert findings[0].worker == fault.truth.worker


def test_queues_that_move_from_server_to_server_are_the_routers(tmp_path):
    findings, _ = world_findings(draw_shape(DRAINED, 950008, hidden=True), tmp_path)
    (in_turn,) = [finding for finding in findings if finding.cause == "servers-in-turn"]
    assert in_turn.scope == "run"
    assert len(in_turn.evidence["by_server"]) == in_turn.evidence["servers"] == 5
    assert [finding for finding in findings if finding.cause == "queue"] == []


def test_a_server_that_queues_with_as_much_room_as_the_others_is_not_named(tmp_path):
    findings, _ = world_findings(draw_shape(ROUTED, 1050002, hidden=True), tmp_path)
    assert [finding for finding in findings if finding.cause in ("queue", "slow-server")] == []


def test_time_outs_of_some_of_the_workers_are_the_tools(tmp_path):
    findings, fault = world_findings(draw_shape(OWN, 4141), tmp_path, "tools: time out in a step", 0)
    assert (findings[0].cause, findings[0].step, findings[0].worker) == ("tool", fault.steps[0], None)
    assert findings[0].evidence["limit_sec"] == pytest.approx(30.0, abs=0.1)


def test_a_call_of_a_fast_tool_that_hangs_is_told_from_a_slow_tools_tail(tmp_path):
    shape = draw_shape(OVERSAMPLED, 4647)
    findings, fault = world_findings(shape, tmp_path, "tools: one call hangs", 1)
    assert (findings[0].cause, findings[0].step) == ("slow-call", fault.steps[0])
