"""`waste` counts the tokens that were generated and thrown away, by reason; the parts add up."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from async_run import AsyncRun, instant, sample
from hand_written import record, step_of, write_file
from hand_written import request as request_record

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.answers.asynchronous.fates import REASONS, sample_fates
from sglang_instrument.analysis.answers.asynchronous.waste import FATES, tokens_of, waste_table
from sglang_instrument.cli.main import main


def waste_of(run: AsyncRun, folder: Path) -> dict[str, Any]:
    digest = open_run(run.write(folder)).digest
    table = waste_table(sample_fates(digest), digest)
    assert (
        table.select(pl.sum_horizontal(map(tokens_of, FATES))).to_series() == table["generated_tokens"]
    ).all()
    return table.sum().row(0, named=True)


def asked(capsys: pytest.CaptureFixture[str], folder: Path) -> dict[str, Any]:
    assert main(["waste", str(folder), "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_a_clean_run_wastes_nothing(tmp_path: Path) -> None:
    total = waste_of(AsyncRun(), tmp_path)
    assert (
        total["generated_tokens"],
        total["used_tokens"],
        total["waiting_tokens"],
        total["wasted_tokens"],
    ) == (2400, 1800, 600, 0)


@pytest.mark.parametrize("reason", ["stale", "over_sampled", "truncated", "aborted", "filtered"])
def test_what_the_trainer_drops_counts_by_its_reason(tmp_path: Path, reason: str) -> None:
    run = AsyncRun()
    run.rollouts[1] += sample("lost", 10, 12, response_length=70, finish_reason="stop")
    run.trainer[2].append(instant("samples_dropped", 20.6, samples=["lost"], reason=reason))
    total = waste_of(run, tmp_path)
    assert (total[tokens_of(reason)], total["wasted_tokens"]) == (70, 70)


def test_an_unknown_reason_is_other(tmp_path: Path) -> None:
    run = AsyncRun()
    run.rollouts[1] += sample("lost", 10, 12, response_length=70)
    run.trainer[2].append(instant("samples_dropped", 20.6, samples=["lost"], reason="bad luck"))
    assert waste_of(run, tmp_path)["other_tokens"] == 70


def test_groups_that_a_filter_rejects_are_filtered(tmp_path: Path) -> None:
    run = AsyncRun(behind=99)
    verdict = {"group_index": "1-0", "kept": False, "reason": "zero_std_0.0"}
    run.rollouts[1].append(record("group_filter", 16, 16.1, extra=verdict, task=0))
    assert waste_of(run, tmp_path)["filtered_tokens"] == 300


def test_a_group_that_was_rejected_and_used_all_the_same_is_used(tmp_path: Path) -> None:
    run = AsyncRun()
    verdict = {"group_index": "1-0", "kept": False}
    run.rollouts[1].append(record("group_filter", 16, 16.1, extra=verdict, task=0))
    assert waste_of(run, tmp_path)["filtered_tokens"] == 0


def test_what_is_aborted_or_fails_is_aborted(tmp_path: Path) -> None:
    run = AsyncRun()
    run.rollouts[1] += sample("cut", 10, 12, response_length=30, finish_reason="abort")
    run.rollouts[1] += sample("failed", 10, 12, generated_tokens=20, error="TimeoutError")
    assert waste_of(run, tmp_path)["aborted_tokens"] == 50


def test_a_cut_off_sample_that_goes_on_later_loses_no_token_and_none_counts_twice(tmp_path: Path) -> None:
    run = AsyncRun(behind=99)
    first = {"sample": 7, "response_length": 30, "resumed_tokens": 0, "finish_reason": "abort"}
    run.rollouts[1] += sample("try 1", 10, 12, **first)
    run.rollouts[2] += sample("try 2", 20, 22, sample=7, response_length=100, resumed_tokens=30)
    run.trainer[3].append(instant("samples_consumed", 30.5, samples=[7]))
    total = waste_of(run, tmp_path)
    assert (total["used_tokens"], total["aborted_tokens"]) == (100, 0)


def test_a_cut_off_sample_that_begins_again_loses_its_tokens(tmp_path: Path) -> None:
    run = AsyncRun(behind=99)
    run.rollouts[1] += sample("try 1", 10, 12, sample=7, response_length=30, finish_reason="abort")
    run.rollouts[2] += sample("try 2", 20, 22, sample=7, response_length=100, resumed_tokens=0)
    run.trainer[3].append(instant("samples_consumed", 30.5, samples=[7]))
    total = waste_of(run, tmp_path)
    assert (total["used_tokens"], total["aborted_tokens"]) == (100, 30)


def test_a_member_that_failed_is_not_used_with_its_group(tmp_path: Path) -> None:
    run = AsyncRun(behind=99)
    run.rollouts[1] += sample("failed", 10, 12, group="1-0", response_length=9, error="ValueError")
    run.trainer[2].append(instant("samples_consumed", 20.5, groups=["1-0"]))
    total = waste_of(run, tmp_path)
    assert (total["used_tokens"], total["aborted_tokens"]) == (300, 9)


def test_a_sample_that_later_steps_passed_over_is_over_sampled(tmp_path: Path) -> None:
    run = AsyncRun(steps=5)
    run.rollouts[1] += sample("extra", 10, 12, response_length=40)
    total = waste_of(run, tmp_path)
    assert (total["over_sampled_tokens"], total["waiting_tokens"], total["unknown_tokens"]) == (40, 600, 0)


def test_without_the_trainers_word_the_rest_is_unknown_and_not_wasted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_file(tmp_path, 1, 0, step_of(request_record("a", 0, 4, response_length=10)))
    answer = asked(capsys, tmp_path)
    assert (
        answer["total"]["unknown_tokens"],
        answer["total"]["used_tokens"],
        answer["total"]["filtered_tokens"],
    ) == (
        10,
        None,
        None,
    )
    assert answer["total"]["equal_rewards_tokens"] is None
    assert answer["engine"] is None
    assert any("samples_consumed" in sentence for sentence in answer["missing"])


def test_requests_without_tokens_are_counted_and_not_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_file(
        tmp_path, 1, 0, step_of(request_record("a", 0, 4), request_record("b", 0, 4, response_length=5))
    )
    answer = asked(capsys, tmp_path)
    assert (answer["total"]["generated_tokens"], answer["total"]["uncounted_requests"]) == (5, 1)
    assert any("1 of 2 requests log no tokens" in sentence for sentence in answer["missing"])


def test_a_log_without_tokens_has_none_and_not_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_file(tmp_path, 1, 0, step_of(request_record("a", 0, 4), request_record("b", 0, 4)))
    answer = asked(capsys, tmp_path)
    assert {answer["total"][f"{name}_tokens"] for name in ("generated", "wasted", *FATES)} == {None}
    assert answer["missing"][0] == "no request logs its tokens: how many were generated is not known"
    assert main(["waste", str(tmp_path)]) == 0
    assert "thrown away" not in capsys.readouterr().out


def test_without_the_reason_why_replies_ended_it_is_not_known_which_were_aborted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_file(tmp_path, 1, 0, step_of(request_record("a", 0, 4, response_length=10)))
    assert asked(capsys, tmp_path)["total"]["aborted_tokens"] is None
    assert main(["waste", str(tmp_path)]) == 0
    assert "what became of 10 of 10 generated tokens is not known" in capsys.readouterr().out


def test_what_no_record_tells_is_null_and_a_sentence_says_what_would_record_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_file(tmp_path, 1, 0, step_of(request_record("a", 0, 4, response_length=10)))
    answer = asked(capsys, tmp_path)
    names = ("wasted", "used_at_limit", "equal_rewards", *REASONS)
    assert {answer["total"][tokens_of(name)] for name in names} == {None}
    words = " ".join(answer["missing"])
    for name in ("samples_consumed", "samples_dropped", "finish_reason", "group", "reward"):
        assert f"`{name}`" in words
    assert "SGLANG_INSTRUMENT=1" in words


def test_a_log_that_holds_everything_misses_nothing_of_the_trainer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = AsyncRun()
    for number, reason in enumerate(("filtered", "stale", "truncated")):
        dropped = instant("samples_dropped", 20.2, samples=[f"s1g0m{number}"], reason=reason)
        run.trainer[2].append(dropped)
    answer = asked(capsys, run.write(tmp_path))
    assert [answer["total"][tokens_of(name)] for name in REASONS] == [
        0,
        0,
        0,
        100,
        100,
        None,
    ]  # what a filter rejects is used all the same
    assert [sentence.partition(":")[0] for sentence in answer["missing"]] == [
        "the engines' own processes logged nothing"
    ]


def test_a_log_of_one_reason_says_nothing_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = AsyncRun()
    run.trainer[2].append(instant("group_filter", 20.2, group_index="1-0", kept=False))
    answer = asked(capsys, run.write(tmp_path))
    assert {answer["total"][tokens_of(name)] for name in ("stale", "truncated", "other")} == {None}
    assert answer["total"]["filtered_tokens"] is not None
    assert "no `samples_dropped` with the reason stale or truncated is in the log" in answer["missing"][0]


def test_used_groups_of_equal_rewards_are_told(tmp_path: Path) -> None:
    run = AsyncRun(behind=99)
    for member in range(2):
        run.rollouts[1] += sample(f"flat {member}", 10, 12, group="flat", response_length=50, reward=1.0)
    run.trainer[2].append(instant("samples_consumed", 20.5, groups=["flat", "1-0"]))
    total = waste_of(run, tmp_path)
    assert (total["equal_rewards_tokens"], total["used_tokens"]) == (100, 400)


def test_the_table_is_printed_with_shares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = AsyncRun()
    run.rollouts[1] += sample("cut", 10, 12, response_length=30, finish_reason="abort")
    folder = run.write(tmp_path)
    assert main(["waste", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "30 of 2,430 generated tokens were thrown away: 1.2 %" in printed
    assert main(["waste", str(folder), "--step", "1"]) == 0
    assert "30 of 630 generated tokens" in capsys.readouterr().out


def test_a_run_without_requests_has_no_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_file(tmp_path, 1, 0, step_of())
    answer = asked(capsys, tmp_path)
    assert answer["steps"] == []
    assert not any("logs its tokens" in sentence for sentence in answer["missing"])
    assert main(["waste", str(tmp_path)]) == 0
