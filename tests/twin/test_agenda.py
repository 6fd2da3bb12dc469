"""An agenda has what the rollout asked of the engine: lengths, shared prompts, groups, limits, flushes."""

import json
import re
import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from closed_loop import GROUPS, MEMBERS, SYSTEM, WORKERS
from conftest import LIMIT, STEPS, Recorded

from sglang_instrument.analysis import open_run
from sglang_instrument.cli.main import main
from sglang_instrument.errors import InstrumentError, LogError
from sglang_instrument.twin import agenda, mooncake_lines, read_agenda, thinned, write_agenda
from sglang_instrument.twin.agendas.sequences import StepTokens

pytestmark = pytest.mark.engine


def edited(recorded: Recorded, folder: Path, pattern: str, instead: str = "") -> Path:
    """Copy a run without some of what it logged."""
    shutil.copytree(recorded.folder, folder, ignore=shutil.ignore_patterns(".*"))
    for path in folder.rglob("*.jsonl"):
        path.write_text(re.sub(pattern, instead, path.read_text()))
    return folder


def test_the_agenda_is_what_the_rollout_asked_for(recorded: Recorded) -> None:
    steps = list(agenda(open_run(recorded.folder)))
    assert [step.step for step in steps] == list(range(1, STEPS + 1))
    for step in steps:
        assert len(step.requests) == WORKERS * GROUPS * MEMBERS
        assert step.limits == dict.fromkeys(range(WORKERS), LIMIT)
        assert step.is_flushed
        assert not step.has_evictions
        assert step.common_prefix_tokens == len(SYSTEM)
    for turn in (turn for step in steps for turn in step.turns):
        assert 0 < turn.sent_sec + turn.returned_sec < turn.call_sec  # both sides logged it
    for request in (request for step in steps for request in step.requests):
        plan = recorded.plan[request.request_id]
        asked = [
            [turn.prompt_tokens, turn.shared_prefix_tokens, turn.generated_tokens] for turn in request.turns
        ]
        first, *later = plan["turns"]
        assert asked[1:] == later
        assert asked[0] == [first[0], first[0], first[2]]  # members of a group have one prompt
        assert request.group == f"g{plan['group']}"


def test_a_cache_that_a_server_emptied_between_two_steps_was_empty(
    recorded: Recorded, tmp_path: Path
) -> None:
    by_servers = edited(recorded, tmp_path / "by_servers", "cache_flush_duration", "something_else")
    assert all(step.is_flushed for step in agenda(open_run(by_servers)))
    by_nobody = edited(recorded, tmp_path / "by_nobody", "cache_flush_duration|engine_cache_flush", "other")
    assert not any(step.is_flushed for step in agenda(open_run(by_nobody)))


def test_prompts_are_others_each_time_but_what_all_begin_with(recorded: Recorded) -> None:
    step = next(iter(agenda(open_run(recorded.folder))))
    once, again = StepTokens(step, 740, played=0), StepTokens(step, 740, played=1)
    for request in step.requests:
        first, second = once.first[id(request)].tolist(), again.first[id(request)].tolist()
        assert len(first) == len(second) == request.turns[0].prompt_tokens
        assert first[: len(SYSTEM)] == second[: len(SYSTEM)]
        assert first[len(SYSTEM) :] != second[len(SYSTEM) :]


def test_groups_follow_from_nodes_of_the_cache_where_no_caller_names_them(
    recorded: Recorded, tmp_path: Path
) -> None:
    nameless = edited(recorded, tmp_path / "nameless", r'"group":\s*\d+,?')
    for step in agenda(open_run(nameless)):
        groups = defaultdict(set)
        for request in step.requests:
            groups[request.group].add(recorded.plan[request.request_id]["group"])
        assert all(len(group) == 1 for group in groups.values())
        assert len(groups) == WORKERS * GROUPS


def test_a_file_has_the_whole_agenda(recorded: Recorded, tmp_path: Path) -> None:
    planned = agenda(open_run(recorded.folder))
    calls = sum(len(request["turns"]) for request in recorded.plan.values())
    assert write_agenda(planned, tmp_path / "agenda.jsonl") == (STEPS, calls)
    for before, after in zip(planned, read_agenda(tmp_path / "agenda.jsonl"), strict=True):
        assert [request.turns for request in after.requests] != []
        assert after.limits == before.limits
        for request, again in zip(before.requests, after.requests, strict=True):
            assert (again.request_id, again.worker, again.group) == (
                request.request_id,
                request.worker,
                request.group,
            )
            for turn, same in zip(request.turns, again.turns, strict=True):
                assert same.wait_sec == pytest.approx(turn.wait_sec, abs=1e-4)
                assert (
                    same.prompt_tokens,
                    same.shared_prefix_tokens,
                    same.generated_tokens,
                    same.server,
                ) == (
                    turn.prompt_tokens,
                    turn.shared_prefix_tokens,
                    turn.generated_tokens,
                    turn.server,
                )


def test_a_line_that_is_none_of_an_agenda_is_named(tmp_path: Path) -> None:
    path = tmp_path / "agenda.jsonl"
    path.write_text('{"kind":"turn","step":1}\n')
    with pytest.raises(LogError, match=r"agenda.jsonl:1: no line of an agenda: .*worker"):
        list(read_agenda(path))


def test_a_thinned_agenda_keeps_whole_groups_and_says_what_that_means(recorded: Recorded) -> None:
    planned = agenda(open_run(recorded.folder))
    third = thinned(planned, every=3)
    for step in third:
        assert len(step.requests) == WORKERS * GROUPS * MEMBERS // 3
        assert set(step.limits.values()) == {-(-LIMIT // 3)}
    assert "1 of 3 groups is played" in third.missing[-1]
    assert sum(1 for _ in thinned(planned, server="server_0")) == STEPS
    assert list(thinned(planned, server="server_7")) == []
    with pytest.raises(InstrumentError, match="got 0"):
        thinned(planned, every=0)


def test_a_log_without_lengths_says_what_would_record_them(recorded: Recorded, tmp_path: Path) -> None:
    without = edited(recorded, tmp_path / "without", r'"prompt_tokens":\s*\d+,?')
    with pytest.raises(
        LogError, match=r"lack the tokens of their prompts.*SGLANG_INSTRUMENT=1 in the servers"
    ):
        agenda(open_run(without))
    strangers = edited(recorded, tmp_path / "strangers", r'"request_id":"[^"]*",?')
    with pytest.raises(LogError, match=r"have no caller.*a `generate` that logs its `rid`"):
        agenda(open_run(strangers))


def test_without_the_servers_logs_what_prompts_share_follows_from_lengths(
    recorded: Recorded, tmp_path: Path
) -> None:
    alone = edited(recorded, tmp_path / "alone", "^$")
    shutil.rmtree(alone / "engine")
    planned = agenda(open_run(alone))
    assert "follows from their lengths" in planned.missing[0]
    for request in (request for step in planned for request in step.requests):
        lengths = [(turn[0], turn[2]) for turn in recorded.plan[request.request_id]["turns"]]
        assert [(turn.prompt_tokens, turn.generated_tokens) for turn in request.turns] == lengths


def test_the_trace_of_mooncake_shares_blocks_as_prompts_share_tokens(recorded: Recorded) -> None:
    lines = list(mooncake_lines(agenda(open_run(recorded.folder), steps=[1])))
    of_step = {name: plan for name, plan in recorded.plan.items() if name.startswith("1-")}
    assert len(lines) == sum(len(plan["turns"]) for plan in of_step.values())
    assert sum(line["input_length"] for line in lines) == sum(
        t[0] for p in of_step.values() for t in p["turns"]
    )
    for line in lines:
        assert len(line["hash_ids"]) == -(-line["input_length"] // 512)
    groups = len({plan["group"] for plan in of_step.values()})
    first_blocks = {line["hash_ids"][0] for line in lines if line["timestamp"] == lines[0]["timestamp"]}
    assert len(first_blocks) <= groups


def test_export_writes_both_and_overwrites_nothing_unasked(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.jsonl"
    assert main(["export", str(recorded.folder), "--agenda", str(file), "--step", "2", "--every", "2"]) == 0
    assert f"of 1 steps in {file}" in capsys.readouterr().out
    kinds = [json.loads(line)["kind"] for line in file.read_text().splitlines()]
    assert kinds.count("step") == 1
    assert main(["export", str(recorded.folder), "--agenda", str(file)]) == 2
    assert "--force overwrites it" in capsys.readouterr().err
    assert main(["export", str(recorded.folder), "--mooncake", str(file), "--force"]) == 0
    assert set(json.loads(file.read_text().splitlines()[0])) == {
        "timestamp",
        "input_length",
        "output_length",
        "hash_ids",
    }
