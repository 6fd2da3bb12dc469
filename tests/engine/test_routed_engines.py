"""Two real servers behind the real router: `servers` says of each policy what the engines' metrics say."""

import json
from typing import Any

import pytest
from routed_engines import COUNTED, LACKING, POLICIES, TALKS, TURNS, Routed, converse_through_routers
from sglang_server import Server

from sglang_instrument.cli.main import main

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        bool(LACKING), reason=f"no router {LACKING}; tests/environments/router.sh makes a place"
    ),
]


@pytest.fixture(scope="module")
def routed(two_servers: list[Server]) -> Routed:
    return converse_through_routers(two_servers, two_servers[0].errors.parents[1])


def answer(capsys: pytest.CaptureFixture[str], routed: Routed, command: str, step: int) -> Any:
    assert main([command, str(routed.folder), "--step", str(step), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_both_servers_are_found_behind_routers_of_either_version(
    routed: Routed, two_servers: list[Server]
) -> None:
    urls = {server.url for server in two_servers}
    assert routed.behind == {"0.3.2": urls, "0.1.9": urls}


@pytest.mark.parametrize("step", POLICIES)
def test_each_server_says_what_its_own_metrics_say(
    routed: Routed, step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = answer(capsys, routed, "servers", step)["servers"]
    reported = sorted(tuple(row[name] for name in COUNTED) for row in rows)
    counted = sorted(tuple(counters[name] for name in COUNTED.values()) for counters in routed.counted[step])
    assert reported == counted
    assert sum(row["calls"] for row in rows) == TALKS * TURNS


@pytest.mark.parametrize("step", POLICIES)
def test_hits_by_turn_are_those_of_the_replies(
    routed: Routed, step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for row in answer(capsys, routed, "turns", step)["turns"]:
        replies = [reply for reply in routed.replies[step] if reply["turn"] == row["turn"]]
        for name in ("prompt_tokens", "cached_tokens"):
            assert row[name] == sum(reply[name] for reply in replies), row["turn"]


def test_a_cache_aware_router_keeps_conversations_and_round_robin_does_not(
    routed: Routed, capsys: pytest.CaptureFixture[str]
) -> None:
    spread, sticky, old = (answer(capsys, routed, "servers", step)["affinity"] for step in POLICIES)
    for affinity in (spread, sticky, old):
        assert affinity["conversations"] == TALKS
        assert affinity["later_calls"] == TALKS * (TURNS - 1)
    assert sticky["stayed_share"] == 1
    for affinity in (spread, old):  # half of two turns, and any of the second turn: that depends on the first
        assert 12 / 36 <= affinity["stayed_share"] <= 24 / 36
    assert sticky["cached_share"] > spread["cached_share"]
    assert spread["cached_share_stayed"] > spread["cached_share_moved"]
    assert sticky["read_again_tokens"] < spread["read_again_tokens"]


def test_schedulers_tell_how_full_their_caches_are(
    routed: Routed, capsys: pytest.CaptureFixture[str]
) -> None:
    for row in answer(capsys, routed, "servers", 2)["servers"]:
        assert 0 < row["kv_cache_running_share"] <= row["kv_cache_share"] <= 1
        # The last admission left the longest prompts of all conversations of this server in its cache.
        assert row["kv_cache_share"] > row["cached_tokens"] / row["calls"] / 8192
        assert row["waiting"] is not None
        assert row["retractions"] == 0
        assert 0 <= row["queue_share"] <= 1
