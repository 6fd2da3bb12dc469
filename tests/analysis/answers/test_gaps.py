"""Plateaus are found exactly where they are planted, and the culprit of a blocked loop is named."""

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_instrument.analysis import Digest, open_run
from sglang_instrument.analysis.answers.gaps import concurrency, loop_blocks, plateaus, standstill
from sglang_instrument.analysis.verdict.verdict import findings_of
from sglang_instrument.testing import BlockedLoop, Plateau, synthetic_run


def brute_plateaus(digest: Digest) -> list[tuple[int, int, int, int, int]]:
    """Return (step, worker, from, to, stuck) by looking at every completion of every worker."""
    groups: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in digest.requests.iter_rows(named=True):
        groups.setdefault((row["step"], row["worker"]), []).append(row)
    gaps = []
    for place, rows in groups.items():
        ends = sorted({row["end_us"] for row in rows})
        for before, after in pairwise(ends):
            running = sum(row["start_us"] <= before < row["end_us"] for row in rows)
            still = sum(row["start_us"] <= before and row["end_us"] >= after for row in rows)
            if running >= 5:
                gaps.append((*place, before, after, still))
    if not gaps:
        return []
    lengths = sorted(to - begin for _, _, begin, to, _ in gaps)
    position = 0.99 * (len(lengths) - 1)
    low = lengths[int(position)]
    usual = low + (lengths[min(int(position) + 1, len(lengths) - 1)] - low) * (position - int(position))
    limit = max(2e6, 10 * usual)
    return sorted(gap for gap in gaps if gap[3] - gap[2] > limit and gap[4] >= 5)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 999), st.booleans())
def test_plateaus_are_those_of_the_definition(seed: int, planted: bool) -> None:
    causes = [Plateau(2, 0, 20.0, 90.0, 8)] if planted else []
    with TemporaryDirectory() as folder:
        synthetic_run(folder, steps=3, workers=2, requests=24, seed=seed, causes=causes)
        digest = open_run(folder).digest
    rows = plateaus(digest).select("step", "worker", "from_us", "to_us", "stuck_requests").rows()
    assert sorted(rows) == brute_plateaus(digest)


def test_a_planted_plateau_is_described(tmp_path: Path) -> None:
    plateau = Plateau(2, 1, 20.0, 90.0, 8)
    digest = open_run(synthetic_run(tmp_path, steps=4, workers=2, requests=24, causes=[plateau])).digest
    (row,) = plateaus(digest).iter_rows(named=True)
    doing = standstill(digest, row)
    assert (row["step"], row["worker"], row["stuck_requests"], row["requests"]) == (2, 1, 8, 24)
    assert (doing["turn"], doing["event"], doing["in_turn"]) == (1, "turn_engine_call", 8)
    assert row["to_sec"] == pytest.approx(90, abs=5)
    assert 8 < doing["since_sec"] <= 20


def test_the_curve_counts_the_requests_in_flight(tmp_path: Path) -> None:
    digest = open_run(synthetic_run(tmp_path, steps=1, workers=1, requests=9)).digest
    curve = concurrency(digest)
    assert curve["in_flight"].max() == 9
    assert curve["in_flight"].to_list()[-1] == 0
    begun = digest.requests["start_us"].min()
    for row in curve.iter_rows(named=True):
        moment = begun + round(row["at_sec"] * 1e6)
        rows = digest.requests.iter_rows(named=True)
        assert row["in_flight"] == sum(request["start_us"] <= moment < request["end_us"] for request in rows)


def test_the_culprit_of_a_blocked_loop_is_named(tmp_path: Path) -> None:
    run = open_run(
        synthetic_run(tmp_path, steps=2, workers=2, requests=4, causes=[BlockedLoop(2, 1, 1.0, 3.0)])
    )
    (row,) = loop_blocks(run.files).iter_rows(named=True)
    assert (row["step"], row["worker"], row["blocked_sec"]) == (2, 1, pytest.approx(3.0))
    assert (row["in_span"], row["culprit"]) == ("reward_calculation", "scoring.py:41 score")


def test_a_blocked_loop_is_attributed_to_its_process(tmp_path: Path) -> None:
    synthetic_run(tmp_path, steps=1, workers=1, requests=4, causes=[BlockedLoop(1, 0, 1.0, 3.0)])
    worker = tmp_path / "step_1/worker_0.jsonl"
    lines = [line for line in worker.read_text().splitlines() if '"log_opened"' in line or "_block" in line]
    worker.with_name("trainer_0.jsonl").write_text("".join(line + "\n" for line in lines))
    run = open_run(tmp_path)
    blocks = loop_blocks(run.files)
    assert sorted(zip(blocks["role"], blocks["worker"], strict=True)) == [("trainer", 0), ("worker", 0)]
    blocked = [finding for finding in findings_of(run, over=False) if finding.cause == "blocked-loop"]
    assert [finding.lost_sec for finding in blocked] == [
        pytest.approx(3.0)
    ]  # the worker's, and not the trainer's too
