"""Black-box agents behind Miles' real session server: their requests hang below the samples', and have turns.

Only SGLang behind the session server is a stand-in, which counts.
"""

import json

import pytest
from conftest import ENVIRONMENT, checkout_of, drive
from logged import read_records, recorded_events

from sglang_instrument.cli.main import main

CALLS, SAMPLES, REPLY_TOKENS = 2, 3, 3
MODEL = ENVIRONMENT.parent / "verl-server-model"


@pytest.fixture(scope="module", params=["v1", "v2"])
def driven(request, tmp_path_factory):
    """What the stand-in answered, and the folder of the run."""
    checkout = checkout_of("MILES")
    if not (ENVIRONMENT / ".made").exists():
        pytest.skip("no environment of verl's server mode: tests/environments/verl_server.sh")
    folder = tmp_path_factory.mktemp("miles_session")
    return drive("drive_miles_session.py", folder, checkout, MODEL, request.param), folder / "run"


def answer(capsys, command, folder, *arguments):
    assert main([command, str(folder), "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_an_agent_works_for_the_request_of_its_sample(driven, capsys):
    trees = answer(capsys, "requests", driven[1], "--tree")["request_trees"]
    assert {row["request_id"] for row in trees if row["depth"] == 0} == {
        f"sample {n}" for n in range(SAMPLES)
    }
    agents = [row for row in trees if row["depth"] == 1]
    assert [row["agent"] for row in agents] == ["agent"] * SAMPLES
    assert [row["turns"] for row in agents] == [CALLS] * SAMPLES
    assert [row["response_tokens"] for row in agents] == [CALLS * REPLY_TOKENS] * SAMPLES


def test_each_call_is_a_turn_of_its_agent_and_none_is_lost(driven, capsys):
    turns = answer(capsys, "turns", driven[1])["turns"]
    assert [(row["turn"], row["requests"]) for row in turns] == [(turn, SAMPLES) for turn in range(CALLS)]
    records = recorded_events(read_records(driven[1])["engine/gateway_0.jsonl"])
    calls = [record["extra"]["rid"] for record in records if record["event"] == "gateway_call"]
    assert sorted(calls) == sorted(driven[0]["rids"])
