"""Each step has a value in a part that a run has, and only steps that can be compared are."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from sglang_instrument.analysis import Digest, compare_runs, open_run, step_table
from sglang_instrument.analysis.changes.compare import Comparison, Condition, comparison_of
from sglang_instrument.analysis.changes.metrics import step_values
from sglang_instrument.analysis.changes.statistics import MetricRatio, difference
from sglang_instrument.cli.main import main
from sglang_instrument.testing import synthetic_run


def made(folder: Path, steps: int, seed: int = 0, **shape: Any) -> Path:
    return synthetic_run(folder, steps=steps, workers=1, requests=3, seed=seed, **shape)


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> Digest:
    return open_run(made(tmp_path_factory.mktemp("a"), 10)).digest


def with_weights(digest: Digest, every: int) -> Digest:
    sec = pl.when(pl.col("step") % every == 0).then(10.0).otherwise(0.0)
    return replace(digest, steps=digest.steps.with_columns(wall_weights=sec))


def verdicts(values: dict[str, Any], other: dict[str, Any], steps: int = 10) -> dict[str, Any]:
    numbers = [*range(1, steps + 1)]
    rows = comparison_of(values, other, numbers, numbers).table.iter_rows(named=True)
    return {row["metric"]: row for row in rows}


def test_a_part_that_a_step_lacks_counts_as_a_millisecond(digest: Digest) -> None:
    seldom, always = step_values(with_weights(digest, 5), with_weights(digest, 1))
    assert [*seldom["weights"].values()].count(0.001) == 8
    assert verdicts(seldom, always)["weights"]["ratio"] > 100
    none, also_none = step_values(with_weights(digest, 100), with_weights(digest, 100))
    assert "weights" not in none | also_none


def test_calls_of_one_run_alone_are_told(digest: Digest) -> None:
    turns = digest.turns.with_columns(tool_sec=pl.lit(0.0))
    without = replace(digest, turns=turns)
    for values, verdict in (((digest, without), "only in A"), ((without, digest), "only in B")):
        row = verdicts(*step_values(*values))["tool"]
        assert (row["verdict"], row["ratio"], row["steps_needed"]) == (verdict, None, None)


def test_between_steps_is_up_to_a_validation(tmp_path: Path) -> None:
    run = open_run(synthetic_run(tmp_path, steps=4, workers=2, requests=3, validate_every=2))
    between = step_values(run.digest, run.digest)[0]["between_steps"]
    begun = {
        (row["step"], row["validate"]): row["start_us"] / 1e6
        for row in step_table(run.digest).iter_rows(named=True)
    }
    ends = {key: begun[key] + sec for key, sec in _durations(run.digest).items()}
    starts = sorted(begun.values())
    for (step, validate), end in ends.items():
        after = [start for start in starts if start > begun[step, validate]]
        if not validate and after:
            assert between[step] == pytest.approx(max(0.001, after[0] - end), abs=0.01)
    assert len(between) in (3, 4)


def _durations(digest: Digest) -> dict[Any, float]:
    return {(row["step"], row["validate"]): row["duration_sec"] for row in step_table(digest).to_dicts()}


def test_few_steps_in_common_are_worse_than_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path / "a", 8)
    later, overlap = made(tmp_path / "b", 8, 1, first_step=8), made(tmp_path / "c", 8, 1, first_step=4)
    comparison = compare_runs(open_run(folder), open_run(later))
    assert (len(comparison.steps), len(comparison.other_steps), comparison.common) == (8, 8, False)
    comparison = compare_runs(open_run(folder), open_run(overlap))
    assert (comparison.steps, comparison.left_out, comparison.other_left_out) == ([4, 5, 6, 7, 8], 3, 3)
    main(["compare", str(folder), str(overlap)])
    shown = " ".join(capsys.readouterr().out.split())
    assert "5 steps of A and 5 steps of B, those that both runs have; A has 3 more; B has 3 more" in shown
    main(["compare", str(folder), str(later), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert (answer["left_out_a"], answer["cold_a"], answer["cold_b"]) == (0, False, False)


def test_a_cold_step_of_one_run_removes_no_step_of_the_other(tmp_path: Path) -> None:
    cold = {"duration": {step: 30.0 if step == 1 else 10.0 + step / 100 for step in range(1, 7)}}
    comparison = comparison_of(cold, {"duration": {9: 10.0}}, [*cold["duration"]], [9])
    assert (comparison.steps, comparison.other_steps, comparison.cold, comparison.other_cold) == (
        [2, 3, 4, 5, 6],
        [9],
        True,
        False,
    )
    usual = {"duration": {step: 10.0 + step / 90 for step in range(1, 7)}}
    steps = [*usual["duration"]]
    paired = comparison_of(cold, usual, steps, steps, paired=True)
    assert paired.steps == paired.other_steps == [2, 3, 4, 5, 6]


def test_values_that_do_not_scatter_are_told_by_their_ratio() -> None:
    ratio = difference([2.0] * 3, [2.0] * 3)
    comparison = Comparison([], [], False, False, False, {"duration": ratio})
    for limit, outcome in ((1.0, "does not hold"), (1.1, "does not hold"), (0.9, "holds")):
        assert comparison.outcomes([Condition("duration", True, limit)])[0]["outcome"] == outcome


def test_a_condition_on_what_no_run_has_is_not_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(made(tmp_path / "a", 4))
    assert main(["compare", run, run, "--fail-if", "weights > 1.1x"]) == 3
    assert "not measured: weights > 1.1x: not in both runs" in " ".join(capsys.readouterr().out.split())
    asked = ["compare", run, run, "--fail-if", "weights > 1.1x", "--fail-if", "engine > 0.5x"]
    assert main(asked) == 1


def test_without_steps_there_is_no_difference() -> None:
    assert difference([], [1.0]) == MetricRatio(None, pytest.approx(1.0), 0)
