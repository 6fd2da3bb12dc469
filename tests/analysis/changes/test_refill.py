"""`whatif --refill` says what refilling single samples in place of whole groups would save."""

import json
from pathlib import Path

import pytest
from async_run import sample
from hand_written import record, step_of, write_file
from hand_written import request as request_record

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.changes.refill import by_group, by_sample, most_in_flight, refill_steps
from sglang_instrument.cli.main import main

GROUPS = [[1.0, 5.0], [1.0, 5.0], [1.0, 1.0]]


def by_groups(folder: Path) -> Path:
    """Write a step that refilled by groups: two places, groups of two."""
    begin, requests = 0.0, []
    for number, group in enumerate(GROUPS):
        for member, sec in enumerate(group):
            requests += sample(f"{number}-{member}", begin, begin + sec, group=number, reward=1.0)
        begin += max(group)
    write_file(folder, 1, 0, [*requests, record("total_step_duration", 0, 12, task=0)])
    return folder


def test_places_are_taken_one_by_one_or_by_groups() -> None:
    assert by_group(GROUPS, 2) == 11
    assert by_sample(GROUPS, 2) == 7
    assert by_sample(GROUPS, 99) == by_group(GROUPS, 99) == 5
    assert by_sample([], 0) == by_group([], 0) == 0


def test_a_request_that_ends_makes_room() -> None:
    assert most_in_flight([0, 0, 5], [5, 9, 9]) == 2


def test_a_step_that_refilled_by_groups_would_gain(tmp_path: Path) -> None:
    digest = open_run(by_groups(tmp_path)).digest
    [row] = refill_steps(digest, "sample").to_dicts()
    assert (row["recorded_sec"], row["predicted_sec"]) == pytest.approx((12, 8))
    assert (row["requests"], row["ended_early"], row["mean_reward"]) == (6, 0, 1)
    assert refill_steps(digest, "group")["predicted_sec"].to_list() == pytest.approx([12])


def test_a_step_whose_samples_begin_at_once_gains_nothing(tmp_path: Path) -> None:
    requests = [
        line for name in "abcd" for line in sample(name, 0, 1 + ord(name) % 5, group=int(name in "ab"))
    ]
    write_file(tmp_path, 1, 0, [*requests, record("total_step_duration", 0, 12, task=0)])
    [row] = refill_steps(open_run(tmp_path).digest, "sample").to_dicts()
    assert row["recorded_sec"] == row["predicted_sec"]


def test_it_is_asked_for_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = by_groups(tmp_path)
    assert main(["whatif", str(folder), "--refill", "sample", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["engine"] is None
    assert answer["steps"][0]["predicted_sec"] == pytest.approx(8)
    assert main(["whatif", str(folder), "--refill", "sample"]) == 0
    assert "there is nothing to refill" in capsys.readouterr().out
    assert main(["whatif", str(folder), "--refill", "sample", "--max-tokens", "9"]) == 2
    assert "--refill goes with no other rule" in capsys.readouterr().err


def test_without_groups_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_file(tmp_path, 1, 0, step_of(request_record("a", 0, 4)))
    assert main(["whatif", str(tmp_path), "--refill", "group"]) == 2
    assert "no request logs its `group`" in capsys.readouterr().err
