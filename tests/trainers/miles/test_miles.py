"""A stand-in for Miles, with its names, signatures and order, logs every event in the right step.

Miles is in no registry. The stand-in has the statements that the tables look for, in code written for this
test; docs/how-to/miles.md says which version of the real source was read.
"""

import json
import sys
from functools import cache
from pathlib import Path

import pytest
from logged import read_records, recorded_events
from logged_program import run_logged

from sglang_instrument.patching.places.source_archives import open_tree
from sglang_instrument.patching.rewriting.check import check
from sglang_instrument.patching.tables.reading import load_table

HERE = Path(__file__).parent
REQUEST = "async_rollout_request_complete"
LIMIT_SEC = 600
#: Events of slime's tables that Miles has no statements for.
NOT_IN_MILES = {"sample_hooks"}  # nor has it the sandboxes of slime.agent


class Rolled:
    """The output and the log of one way of rolling out."""

    def __init__(self, printed, folder):
        self.given = json.loads(printed.splitlines()[-1])
        self.logs = {path: recorded_events(records) for path, records in read_records(folder).items()}

    def of(self, event, file=None):
        files = self.logs.values() if file is None else [self.logs[file]]
        return [record for records in files for record in records if record["event"] == event]

    def extras(self, event, file=None):
        return [record.get("extra", {}) for record in self.of(event, file)]


@pytest.fixture(scope="module")
def rolled(tmp_path_factory):
    """Run one of the ways of `drive_miles.py`, each only once."""

    @cache
    def run(*way):
        folder = tmp_path_factory.mktemp("miles_" + "_".join(way))
        command = [sys.executable, "-W", "ignore", HERE / "drive_miles.py", *way]
        done = run_logged(command, folder, limit_sec=LIMIT_SEC, paths=[HERE, HERE / "stand_in"], hook=False)
        return Rolled(done.stdout, folder / "run")

    return run


@pytest.mark.parametrize("name", ["rollout", "engine", "tracker"])
def test_every_region_is_found_and_every_field_has_its_local(name):
    [result] = check([load_table(f"miles/{name}")], open_tree(HERE / "stand_in"))
    assert [(site.region.event, site.note) for site in result.sites if site.state != "found"] == []
    assert [(site.region.event, site.note) for site in result.sites if "no local" in site.note] == []


def test_miles_has_every_event_that_slime_has():
    ours, slimes = (
        {
            region.event
            for name in ("rollout", "engine", "tracker")
            for patch in load_table(f"{trainer}/{name}").patches
            for region in patch.regions
        }
        for trainer in ("miles", "slime")
    )
    assert slimes - ours == NOT_IN_MILES


@pytest.mark.parametrize("way", ["plain", "tools", "agent", "legacy"])
def test_training_is_given_the_same_with_us_and_without(rolled, way):
    without = rolled(way, "never")
    assert without.given == rolled(way).given is not None
    assert without.logs == {}


@pytest.mark.parametrize("way", ["plain", "legacy"])
def test_every_request_is_in_the_folder_of_its_step_and_says_what_it_made(rolled, way):
    run = rolled(way)
    places = ("step_5", "step_6", "validate_6")
    assert [len(run.of(REQUEST, f"{place}/worker_0.jsonl")) for place in places] == [4, 4, 3]
    for extra in run.extras(REQUEST, "step_5/worker_0.jsonl"):
        assert (extra["turns"], extra["finish_reason"], extra["status"]) == (1, "stop", "completed")
        assert (extra["response_length"], extra["reward"], extra["total_sequence_length"]) == (13, 13.0, 26)
        assert (extra["first_weight_version"], extra["weight_version"]) == ("7", "7")
    assert {extra["group_index"] for extra in run.extras(REQUEST, "step_5/worker_0.jsonl")} == {0, 1}
    assert len({extra["request_id"] for extra in run.extras(REQUEST)}) == 11


@pytest.mark.parametrize("way", ["plain", "legacy"])
def test_a_step_has_its_parts_in_it(rolled, way):
    run, file = rolled(way), "step_5/worker_0.jsonl"
    [step], [rollout] = run.of("total_step_duration", file), run.of("async_generate_duration", file)
    assert rollout["duration_sec"] <= step["duration_sec"]
    assert rollout["extra"]["groups"] == 2
    [lengths] = run.extras("step_response_length_stats", file)
    assert (lengths["batch_size"], lengths["response_length_mean"]) == (4, 13.0)
    once = [
        "batch_construction_duration",
        "final_construction_duration",
        "requests_abort",
        "abort_wait",
    ]
    assert [len(run.of(event, file)) for event in once] == [1, 1, 1, 1]
    per_request = ["request_wait", "main_loop", "turn_end", "turn_pre_process", "turn_post_process"]
    assert [len(run.of(event, file)) for event in [*per_request, "turn_engine_call"]] == [4] * 6
    assert len(run.of("request_group", file)) == 2
    [dataset] = run.extras("eval_dataset", "validate_6/worker_0.jsonl")
    assert (dataset["dataset"], dataset["samples"]) == ("tiny", 3)


def test_turns_of_the_multi_turn_function_hold_their_engine_calls_and_tools(rolled):
    run, file = rolled("tools"), "step_5/worker_0.jsonl"
    for request in run.extras(REQUEST, file):
        assert (request["turns"], request["reward"]) == (3, 0.5)
        mine = [
            turn_fields
            for turn_fields in run.extras("turn_end", file)
            if turn_fields["request_id"] == request["request_id"]
        ]
        assert [turn_fields["turn"] for turn_fields in mine] == [0, 1, 2]
        calls = [
            call for call in run.extras("tool_call", file) if call["request_id"] == request["request_id"]
        ]
        assert [(call["tool"], call["turn"]) for call in calls] == [("unknown", turn) for turn in (0, 1, 2)]
    assert [batch["tools"] for batch in run.extras("tool_execution", file)] == [["calculator"]] * 12
    for event in ("turn_tool_parsing", "tool_execution", "tool_response_processing", "turn_pre_process"):
        assert len(run.of(event, file)) == 12


def test_an_agent_behind_a_session_server_is_one_loop_without_turns(rolled):
    run, file = rolled("agent"), "step_5/worker_0.jsonl"
    assert {agent["session"] for agent in run.extras("agent_request", file)} == {"session-1"}
    assert {collected["samples"] for collected in run.extras("samples_collect", file)} == {1}
    assert run.of("turn_engine_call", file) == []


def test_requests_of_a_loop_that_outlives_its_step_are_in_the_step_in_which_they_began(rolled):
    run = rolled("async")
    later = run.of(REQUEST, "step_6/worker_0.jsonl")
    assert run.of(REQUEST, "step_5/worker_0.jsonl")
    assert later
    assert {record["step"] for record in later} == {6}
    [collected] = run.extras("groups_collect", "step_6/worker_0.jsonl")
    assert (collected["groups"], len(collected["group_index"]), collected["weight_version"]) == (2, 2, 2)
    assert run.of("group_produce", "step_6/worker_0.jsonl")


def test_a_step_names_the_samples_that_it_hands_to_training(rolled):
    run = rolled("plain")
    [consumed] = run.extras("samples_consumed", "step_6/worker_0.jsonl")
    requests = run.extras(REQUEST, "step_6/worker_0.jsonl")
    assert sorted(consumed["samples"]) == sorted(request["sample"] for request in requests)
    assert (set(consumed["groups"]), consumed["weight_version"]) == (
        {request["group"] for request in requests},
        2,
    )


def test_what_the_buffer_drops_is_named_with_the_reason(tmp_path):
    script = """
import asyncio, sglang_instrument
from types import SimpleNamespace
from miles.utils.types import Sample
from miles.rollout.fully_async_data_buffer import DefaultDataBuffer

sglang_instrument.install()

def made(number, status="COMPLETED", keep=True):
    group = [Sample(number, number, status=Sample.Status[status], weight_versions=[str(number)])]
    return SimpleNamespace(group=group, prompt_group=group, keep=keep)

async def main():
    buffer = DefaultDataBuffer(1)
    for one in (made(1), made(2, "ABORTED"), made(3, keep=False), made(4)):
        await buffer.put(one)
    return (await buffer.get(current_version=5)).group[0].index

with sglang_instrument.step(7):
    assert asyncio.run(main()) == 4
sglang_instrument.flush()
"""
    command = [sys.executable, "-c", script]
    run_logged(command, tmp_path, limit_sec=LIMIT_SEC, paths=[HERE / "stand_in"], hook=False)
    records = recorded_events(read_records(tmp_path / "run")["step_7/worker_0.jsonl"])
    dropped = [record["extra"] for record in records if record["event"] == "samples_dropped"]
    assert [(drop["reason"], drop["samples"]) for drop in dropped] == [
        ("aborted", [2]),
        ("filtered", [3]),
        ("stale", [1]),
    ]


def test_nothing_that_was_said_is_in_the_log(rolled):
    for way in ("plain", "tools", "agent", "legacy"):
        assert "secret" not in json.dumps(rolled(way).logs)
