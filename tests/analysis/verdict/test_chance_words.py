"""The verdict says "chance" only of what chance explains, and never begins with it."""

import math
import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hand_written import record, request, write_file
from hypothesis import assume, given
from hypothesis import strategies as st

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.verdict.evidence.chance import (
    chance_of_higher_ranks,
    chance_of_one_more,
    chances_of_higher_logs,
    chances_of_higher_ranks,
)
from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.analysis.verdict.verdict import in_order_of_weight, judge

REQUESTS = 24
TOKEN_SEC = 0.01


def write_replies(folder: Path, steps: int, seed: int, times: dict[int, float], sigma: float = 0.4) -> Path:
    """Write steps of two workers that write replies of random lengths at one speed, all at once.

    Args:
        folder: The run's.
        steps: How many.
        seed: Of the lengths.
        times: By step, how many times as long its replies are.
        sigma: Of the logarithms of the lengths.
    """
    draw = random.Random(seed)
    for step in range(1, steps + 1):
        begin = 200.0 * step
        for worker in range(2):
            spans = []
            for number in range(REQUESTS):
                name = f"{step}-{worker}-{number}"
                tokens = int(400 * draw.lognormvariate(0.0, sigma) * times.get(step, 1.0))
                end = begin + tokens * TOKEN_SEC
                call = {"request_id": name, "turn": 0, "generated_tokens": tokens}
                rollout = request(name, begin, end, actual_response_tokens=tokens)
                spans += [record("turn_engine_call", begin, end, extra=call, task=rollout["task"]), rollout]
            spans.sort(key=lambda span: span["start_us"] + span["duration_sec"] * 1e6)
            last = (spans[-1]["start_us"] - spans[0]["start_us"]) / 1e6 + spans[-1]["duration_sec"]
            write_file(
                folder, step, worker, [*spans, record("total_step_duration", begin, begin + last, task=0)]
            )
    return folder


def test_replies_that_are_longer_in_a_whole_step_are_no_chance(tmp_path: Path) -> None:
    """With three steps, their spread is not known; the ranks of the replies tell."""
    verdict = judge(open_run(write_replies(tmp_path, 3, 3, {2: 1.45})))
    [finding] = verdict.findings
    assert (finding.cause, finding.scope, finding.step) == ("long-replies", "step", 2)
    assert "drawn" not in finding.evidence
    assert verdict.sentence.startswith("step 2: replies were 1.")
    assert "as long as in the other steps" in verdict.sentence
    assert not verdict.calm


def test_a_run_in_which_chance_drew_a_long_reply_begins_with_nothing_out_of_the_ordinary(
    tmp_path: Path,
) -> None:
    verdict = judge(open_run(write_replies(tmp_path, 6, 8, {}, sigma=0.6)))
    [finding] = verdict.findings
    assert finding.evidence["drawn"]
    assert (finding.scope, finding.step, finding.worker, finding.request_id) == ("run", None, None, None)
    assert verdict.sentence.startswith("nothing out of the ordinary; ")
    assert "drew longer replies than most by chance" in verdict.sentence
    assert verdict.calm


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=40),
    st.lists(st.integers(1, 30), min_size=1, max_size=40),
)
def test_the_chance_of_ranks_is_that_of_mann_and_whitney(values: list[int], others: list[int]) -> None:
    from scipy.stats import mannwhitneyu

    assume(len({*values, *others}) > 1)  # of equal values alone, none ranks higher
    expected = mannwhitneyu(values, others, alternative="greater", method="asymptotic").pvalue
    assert chance_of_higher_ranks(pl.Series(values), pl.Series(others)) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(1, 30)), min_size=1, max_size=60))
def test_the_chances_of_all_cells_are_those_of_each(rows: list[tuple[int, bool, int]]) -> None:
    table = pl.DataFrame(rows, schema={"cell": pl.Int64, "kind": pl.Boolean, "value": pl.Int64}, orient="row")
    chances = chances_of_higher_ranks(table, "value", ["cell", "kind"], "kind", 1.5)
    for row in chances.iter_rows(named=True):
        of_kind = table.filter(kind=row["kind"])
        mine, others = (
            of_kind.filter((pl.col("cell") == row["cell"]) == here)["value"] for here in (True, False)
        )
        assert (row["count"], row["others"]) == (len(mine), len(others))
        if len(others):
            assert row["chance"] == pytest.approx(chance_of_higher_ranks(mine, others, 1.5), abs=1e-9)
            means = [part.cast(pl.Float64).log().mean() for part in (mine, others)]
            assert row["times"] == pytest.approx(math.exp(means[0] - means[1]))


def test_the_chances_of_logarithms_are_students() -> None:
    from scipy.stats import t

    draw = random.Random(0)
    usual = [(cell, draw.lognormvariate(5.0, 0.5)) for cell in range(1, 6) for _ in range(12)]
    rows = [*usual, *((0, draw.lognormvariate(6.5, 0.5)) for _ in range(8)), *((6, 150.0) for _ in range(3))]
    table = pl.DataFrame(rows, schema=["cell", "value"], orient="row").with_columns(kind=pl.lit(value=True))
    chances = chances_of_higher_logs(table, "value", ["cell", "kind"], "kind", 1.5)
    assert chances["cell"].to_list() == [*range(1, 6), 0, 6]
    mine, others = (
        np.log(table.filter((pl.col("cell") == 0) == here)["value"].to_numpy()) for here in (True, False)
    )
    error = others.std(ddof=1) * math.sqrt(1.5 * (1 / len(mine) + 1 / len(others)))
    expected = t.sf((mine.mean() - others.mean()) / error, len(others) / 1.5 - 1)
    assert chances["chance"].to_list() == pytest.approx([*[1.0] * 5, expected, 1.0])
    assert expected < 1e-5


@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_the_chance_of_one_more_is_students_with_two_values_of_the_least_spread(count: int) -> None:
    from scipy.stats import t

    known = np.linspace(-1.0, 1.0, count) if count > 1 else np.zeros(count)
    spread = math.sqrt((float((known**2).sum()) + 2 * 0.1**2) / (count + 1))
    reached = np.array([0.0, 0.5, 3.0])
    expected = t.sf(reached / (spread * math.sqrt(1 + 1 / max(1, count))), count + 1)
    assert chance_of_one_more(reached, known, 0.1) == pytest.approx(expected)


def test_findings_that_cost_nothing_come_after_those_that_cost_time() -> None:
    costly = Finding("engine", "step", 3.0, "slow")
    free = Finding("wrong-label", "run", 0.0, "wrong")
    drawn = Finding("long-replies", "request", 9.0, "long", evidence={"drawn": True})
    hang = Finding("hang", "worker", 0.0, "stuck")
    assert in_order_of_weight([drawn, free, costly, hang]) == [hang, costly, free, drawn]
