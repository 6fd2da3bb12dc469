"""The verdict finds stale samples, groups that age by waiting, and waste; it accuses no clean run."""

import re
from pathlib import Path

import pytest
from async_run import AsyncRun, instant, sample

from sglang_instrument.analysis import findings_of, open_run
from sglang_instrument.analysis.verdict.detectors import CAUSES
from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.testing import synthetic_run

OURS = {"stale-samples", "group-wait", "thrown-away"}


def findings_by_cause(run: AsyncRun, folder: Path) -> dict[str, Finding]:
    findings = findings_of(open_run(run.write(folder)), over=True)
    return {finding.cause: finding for finding in findings if finding.cause in OURS}


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_a_clean_run_has_no_such_finding(tmp_path: Path, behind: int) -> None:
    assert findings_by_cause(AsyncRun(steps=6, behind=behind), tmp_path) == {}


def test_runs_that_log_no_use_of_samples_have_none(tmp_path: Path) -> None:
    folder = synthetic_run(tmp_path / "exp", steps=4, workers=2, requests=8)
    assert {finding.cause for finding in findings_of(open_run(folder))} & OURS == set()


def test_planted_samples_over_the_limit_are_found(tmp_path: Path) -> None:
    run = AsyncRun(steps=6)
    run.rollouts[1] += sample("old", 10, 12, weight_version=1, first_weight_version=1)
    run.take(6, ["old"])
    finding = findings_by_cause(run, tmp_path)["stale-samples"]
    assert finding.sentence.endswith("up to 5 versions in step 6, allowed: 2 versions")
    assert finding.evidence["request_id"] == "old"
    assert re.search(r"`sglang-instrument staleness /\S+ --step 6`", finding.advice)


def test_samples_at_the_limit_are_allowed(tmp_path: Path) -> None:
    run = AsyncRun(steps=6)
    run.rollouts[3] += sample("just", 30, 32, weight_version=3)
    run.take(5, ["just"])
    assert findings_by_cause(run, tmp_path) == {}


def test_groups_that_age_by_waiting_are_found(tmp_path: Path) -> None:
    run = AsyncRun(steps=6, behind=99)
    for step in (1, 2, 3):
        names = run.names[step]
        for group in range(2):
            slow = f"slow {step} {group}"
            begin = step * 10
            fields = {"group": f"{step}-{group}", "first_weight_version": step, "weight_version": step + 2}
            run.rollouts[step] += sample(slow, begin, begin + 25, **fields)
            names = [*names, slow]
        run.take(step + 3, names, max_staleness=None)
    finding = findings_by_cause(run, tmp_path)["group-wait"]
    assert finding.evidence["versions"] == pytest.approx(2)
    assert finding.evidence["wait_sec"] == pytest.approx(22)
    assert "--groups" in finding.advice


@pytest.mark.parametrize(("members", "is_found"), [(8, True), (7, False)])
def test_many_tokens_that_never_reach_the_trainer_are_found(
    tmp_path: Path, members: int, is_found: bool
) -> None:
    run = AsyncRun(steps=6)
    names = [f"flat {member}" for member in range(members)]
    for name in names:
        run.rollouts[2] += sample(name, 20, 24, response_length=200, weight_version=2)
    run.trainer[3].append(instant("samples_dropped", 30.2, samples=names, reason="filtered"))
    findings = findings_by_cause(run, tmp_path)
    assert ("thrown-away" in findings) == is_found
    if is_found:
        assert (
            findings["thrown-away"].sentence == "31% of the generated tokens were thrown away: 100% filtered"
        )
        assert findings["thrown-away"].evidence["tokens"] == {"filtered": 1600}
        assert re.search(r"`sglang-instrument waste /\S+`", findings["thrown-away"].advice)


def test_few_tokens_that_are_thrown_away_are_no_finding(tmp_path: Path) -> None:
    run = AsyncRun(steps=6)
    for member in range(9):
        run.rollouts[2] += sample(f"cut {member}", 20, 21, response_length=20, finish_reason="abort")
    assert findings_by_cause(run, tmp_path) == {}


def test_each_cause_has_an_advice() -> None:
    assert CAUSES.keys() >= OURS
