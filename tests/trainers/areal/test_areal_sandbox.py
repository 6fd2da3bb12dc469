"""AReaL's real sandboxes log when they are set up, used and taken down, each within its request."""

import pytest
from conftest import ENVIRONMENTS, HERE, _run
from logged import read_records, recorded_events

from sglang_instrument.analysis import open_run
from sglang_instrument.schema import kind_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if not (ENVIRONMENTS / "areal/.made").exists():
        pytest.skip("no environment for AReaL: tests/environments/areal.sh")
    folder = tmp_path_factory.mktemp("areal_sandbox")
    _run([ENVIRONMENTS / "areal/bin/python", HERE / "sandbox_run.py", folder], folder)
    return folder / "run"


def test_set_up_use_and_tear_down_lie_in_the_request(folder):
    records = recorded_events(read_records(folder)["step_3/worker_0.jsonl"])
    by_event = {record["event"]: record for record in records}
    assert set(by_event) >= {"environment_setup", "tool_call", "environment_teardown", "request"}
    for event in ("environment_setup", "tool_call", "environment_teardown"):
        assert by_event[event]["extra"]["request_id"] == "a"
    assert by_event["tool_call"]["extra"]["exit_code"] == 0
    assert by_event["environment_setup"]["duration_sec"] > 0.04
    assert kind_of("environment_setup").phase == kind_of("environment_teardown").phase == "environment"


def test_their_time_is_a_part_of_the_step_of_its_own(folder):
    steps = open_run(folder).digest.steps.to_dicts()
    assert sum(row["wall_environment"] for row in steps) > 0.06
