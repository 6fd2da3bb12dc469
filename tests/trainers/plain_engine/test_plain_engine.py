"""A rollout of a team's own over a real `sglang.Engine`: two schedulers, and the newest SGLang.

Greedy replies have the same tokens with the package and without it.
"""

import io
import json
import sys
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import pytest
from logged import read_records, recorded_events
from logged_program import run_logged
from sglang_server import model_of_the_demo

from sglang_instrument.cli.main import main
from sglang_instrument.demo.cpu_platform import write_plugin

pytestmark = pytest.mark.engine

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[2] / ".envs"
NEWEST = "0.5.23"
TOKENS, TALKS, PROMPTS, SAMPLES = 12, 4, 6, 4
LIMIT_SEC = 1200


@pytest.fixture(scope="module")
def driven(tmp_path_factory):
    """Run `drive_engine.py`, each way once; return its folder and its outcome."""

    @cache
    def drive(schedulers, *switch, version=None):
        folder = tmp_path_factory.mktemp(f"engine_{schedulers}")
        write_plugin(folder / "plugin")
        newer = [ENVIRONMENTS / f"sglang-{version}"] if version else []
        if newer and not (newer[0] / ".made").exists():
            pytest.skip(f"no SGLang {version}: tests/environments/sglang.sh")
        command = [sys.executable, "-W", "ignore", HERE / "drive_engine.py", model_of_the_demo(), folder]
        run_logged(
            [*command, schedulers, *switch],
            folder,
            limit_sec=LIMIT_SEC,
            paths=[folder / "plugin", *newer],
            hook=False,
            OMP_NUM_THREADS="1",
            SGLANG_CPU_OMP_THREADS_BIND="|".join(str(rank) for rank in range(schedulers)),
        )
        return folder / "run", json.loads((folder / "outcome.json").read_text())

    return drive


def answer(command, folder, *arguments):
    with redirect_stdout(io.StringIO()) as printed:
        assert main([command, str(folder), "--json", *arguments]) == 0
    return json.loads(printed.getvalue())


def calls_of(folder):
    records = [record for records in read_records(folder).values() for record in recorded_events(records)]
    return [record for record in records if record["event"] == "engine_generate"]


def test_greedy_replies_of_the_newest_sglang_are_the_same_with_us_and_without(driven):
    _, ours = driven(1, "install", version=NEWEST)
    folder, without = driven(1, version=NEWEST)
    assert ours["version"] == without["version"] == NEWEST
    assert ours["tokens"] == without["tokens"]
    counts = [len(reply) for several in ours["tokens"] for reply in several]
    assert counts == [TOKENS] * (2 * TALKS + PROMPTS + SAMPLES)
    assert not folder.exists()


def test_two_schedulers_give_the_same_greedy_replies(driven):
    assert driven(2, "install")[1] == driven(2)[1]


def test_engine_time_of_a_request_is_the_union_of_its_calls_and_its_tokens_are_those_of_all(driven):
    folder, _ = driven(2, "install")
    requests = {request["request_id"]: request for request in answer("requests", folder)["requests"]}
    tokens = {"b0": PROMPTS * TOKENS, "c0": SAMPLES * TOKENS} | {
        f"a{row}": 2 * TOKENS for row in range(TALKS)
    }
    turns = {"b0": 1, "c0": 1} | {f"a{row}": 2 for row in range(TALKS)}
    assert {name: request["response_tokens"] for name, request in requests.items()} == tokens
    assert {name: request["turns"] for name, request in requests.items()} == turns
    for name, request in requests.items():
        calls = [call["duration_sec"] for call in calls_of(folder) if call["extra"]["request_id"] == name]
        assert request["engine_sec"] == pytest.approx(sum(calls), abs=0.002)  # they follow one another
        assert request["engine_sec"] <= request["duration_sec"]


def test_each_scheduler_has_its_calls_and_tokens_and_no_call_is_without_one(driven):
    folder, _ = driven(2, "install")
    servers = {row["server"]: row for row in answer("servers", folder)["servers"]}
    assert servers.keys() == {"scheduler_0_tp0", "scheduler_1_tp0"}
    samples = 2 * TALKS + PROMPTS + SAMPLES
    assert sum(row["completion_tokens"] for row in servers.values()) == samples * TOKENS
    assert sum(row["calls"] for row in servers.values()) == samples + 1  # SGLang prefills once before samples


def test_a_call_with_several_replies_has_the_reason_of_each(driven):
    folder, _ = driven(2, "install")
    several = [call["extra"] for call in calls_of(folder) if "requests" in call["extra"]]
    assert [extra["finish_reasons"] for extra in several] == [["length"] * PROMPTS, ["length"] * SAMPLES]
    assert all("finish_reason" not in extra for extra in several)
