"""A played agenda asks a real server for what was recorded, in its order, and is a run itself."""

import json
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from conftest import LIMIT, STEPS, Recorded

from sglang_instrument.analysis import open_run, server_calls
from sglang_instrument.cli.main import main
from sglang_instrument.twin import agenda, play
from sglang_instrument.twin.trials.figures import figures_of

pytestmark = pytest.mark.engine
COUNTERS = ("sglang:prompt_tokens_total", "sglang:generation_tokens_total", "sglang:num_requests_total")


def counted(url: str) -> Counter[str]:
    """Return the sums of a server's own counters."""
    sums: Counter[str] = Counter()
    with urllib.request.urlopen(url + "/metrics", timeout=60) as reply:
        for line in reply.read().decode().splitlines():
            name = line.partition("{")[0]
            if name in COUNTERS:
                sums[name] += round(float(line.rpartition(" ")[2]))
    return sums


@pytest.fixture(scope="module")
def twin(recorded: Recorded) -> Path:
    """The run of a twin without a warm-up; the server counted what the record asked for."""
    before = counted(recorded.url)
    played = play(
        agenda(open_run(recorded.folder)),
        [recorded.url],
        name="twin",
        log_dir=recorded.folder.parent,
        warm_up=False,
    )
    turns = [turn for plan in recorded.plan.values() for turn in plan["turns"]]
    assert [step.step for step in played] == list(range(1, STEPS + 1))
    assert sum(step.calls for step in played) == len(turns)
    assert sum(step.prompt_tokens for step in played) == sum(turn[0] for turn in turns)
    assert sum(step.generated_tokens for step in played) == sum(turn[2] for turn in turns)
    assert sum(step.retries for step in played) == 0
    after = counted(recorded.url) - before
    assert after["sglang:num_requests_total"] == len(turns)
    assert after["sglang:prompt_tokens_total"] == sum(turn[0] for turn in turns)
    assert after["sglang:generation_tokens_total"] == sum(turn[2] for turn in turns)
    return recorded.folder.parent / "twin"


def test_the_cache_has_as_much_of_the_prompts_as_in_the_record(recorded: Recorded, twin: Path) -> None:
    record, other = (figures_of(open_run(folder)) for folder in (recorded.folder, twin))
    assert record.keys() == other.keys()
    for step, figures in record.items():
        assert other[step].prompt_tokens == figures.prompt_tokens
        assert abs(other[step].cached_tokens - figures.cached_tokens) <= 0.05 * figures.prompt_tokens


def test_turns_follow_each_other_after_the_recorded_waits(recorded: Recorded, twin: Path) -> None:
    planned = {
        request.request_id: request for step in agenda(open_run(recorded.folder)) for request in step.requests
    }
    calls = server_calls(open_run(twin)).drop_nulls("request_id").sort("start_us").to_dicts()
    by_request: dict[str, list[dict]] = {}
    for call in calls:
        by_request.setdefault(call["request_id"], []).append(call)
    assert by_request.keys() == planned.keys()
    for name, of_request in by_request.items():
        assert [call["turn"] for call in of_request] == list(range(len(planned[name].turns)))
        pairs = zip(of_request, of_request[1:], planned[name].turns[1:], strict=False)
        for before, after, turn in pairs:
            assert after["start_us"] - before["end_us"] >= 1e6 * turn.wait_sec - 2000


def test_a_worker_never_has_more_requests_open_than_its_client_had(twin: Path) -> None:
    for _, requests in open_run(twin).table("requests").group_by("step", "worker"):
        changes = sorted(
            [(start, 1) for start in requests["start_us"]] + [(end, -1) for end in requests["end_us"]]
        )
        now = most = 0
        for _, change in changes:
            now += change
            most = max(most, now)
        assert most == LIMIT


@pytest.mark.parametrize("command", ["summary", "requests", "turns", "servers", "check"])
def test_the_commands_answer_for_a_twin(twin: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, str(twin)]) in (0, 1)
    assert capsys.readouterr().out


def test_the_command_compares_the_twin_with_the_record(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["twin", str(recorded.folder), "--server", recorded.url, "--to", str(tmp_path), "--json"]
    assert main(asked) in (0, 1)  # how long it took depends on what else the machine does
    answer = json.loads(capsys.readouterr().out)
    parts = {part["part"]: part for part in answer["parts"]}
    assert all(parts[name]["is_near"] for name in ("calls", "prompt tokens", "generated tokens"))
    assert parts["cached share"]["is_near"]
    assert answer["sentence"].startswith("the twin's rollout takes ")
    assert Path(answer["twin"]) == tmp_path / "run.twin-1"
    assert open_run(answer["twin"]).steps == list(range(1, STEPS + 1))
