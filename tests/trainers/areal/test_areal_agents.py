"""Agents behind AReaL's real proxy: their requests hang below those of the episodes, and have turns."""

import json

import pytest
from conftest import ENVIRONMENTS, HERE, _run, _server
from logged import read_records, recorded_events

from sglang_instrument.analysis import open_run
from sglang_instrument.cli.main import main
from sglang_instrument.free_ports import free_port

EPISODES, CALLS = 4, 2  # two prompts, each in a group of two


@pytest.fixture(scope="module")
def driven(tmp_path_factory):
    """What training was handed, and the folder of the run."""
    python = ENVIRONMENTS / "areal/bin/python"
    if not (ENVIRONMENTS / "areal/.made").exists() or not (ENVIRONMENTS / "areal-model/.made").exists():
        pytest.skip("no environment for AReaL: tests/environments/areal.sh")
    folder = tmp_path_factory.mktemp("areal_agents")
    port = str(free_port())
    with _server(python, folder, port):
        _run([python, HERE / "agent_run.py", ENVIRONMENTS / "areal-model", folder, port], folder)
    return json.loads((folder / "outcome.json").read_text()), folder / "run"


def answer(capsys, command, folder, *arguments):
    assert main([command, str(folder), "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_an_agent_works_for_the_request_of_its_episode(driven, capsys):
    trees = answer(capsys, "requests", driven[1], "--tree")["request_trees"]
    roots = {row["request_id"]: row for row in trees if row["depth"] == 0}
    agents = [row for row in trees if row["depth"] == 1]
    assert len(roots) == len(agents) == EPISODES
    assert {row["agent"] for row in agents} == {"Asker"}
    assert {row["parent_request"] for row in agents} == set(roots)
    assert {row["step"] for row in trees} == {3}
    for agent in agents:
        assert agent["duration_sec"] <= roots[agent["parent_request"]]["duration_sec"]


def test_each_call_through_the_proxy_is_a_turn_of_the_agent(driven, capsys):
    turns = answer(capsys, "turns", driven[1])
    assert [(row["turn"], row["requests"]) for row in turns["turns"]] == [
        (turn, EPISODES) for turn in range(CALLS)
    ]
    (agent,) = [row for row in turns["agents"] if row["agent"] == "Asker"]
    assert agent["requests"] == EPISODES
    written = sum(row["response_tokens"] for row in turns["turns"])
    assert agent["response_tokens"] == written == driven[0]["reply_tokens"]


def test_the_proxy_logs_each_call_with_its_session_and_no_key(driven):
    records = recorded_events(read_records(driven[1])["engine/gateway_0.jsonl"])
    calls = [record["extra"] for record in records if record["event"] == "gateway_call"]
    assert len(calls) == EPISODES * CALLS == len({call["rid"] for call in calls})
    agents = open_run(driven[1], cached=False).everything.requests.filter(agent="Asker")
    assert {call["session"] for call in calls} == set(agents["request_id"])
    assert {call["weight_version"] for call in calls} <= {-1, 0, 3}
