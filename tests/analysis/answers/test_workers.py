"""Blame, gain and clocks of workers equal a brute-force computation, and doubts are named."""

import json
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.answers.workers import barrier_table, blame_table, chain_of
from sglang_instrument.analysis.run.clocks import clock_table
from sglang_instrument.testing import SlowEngine, SlowPart, synthetic_run

EPOCH_US = 1_767_600_000_000_000


def write_barrier(
    folder: Path, arrivals: list[int], step: int = 1, skew: dict[int, int] | None = None
) -> None:
    """Write a step whose workers arrive after the given seconds, and leave a second after the last one."""
    leave = max(arrivals) + 1
    for worker, arrival in enumerate(arrivals):
        path = folder / f"step_{step}" / f"worker_{worker}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        ahead = (skew or {}).get(worker, 0)
        lines = []
        for event, start, end in (
            ("barrier_wait_duration", arrival, leave),
            ("total_step_duration", 0, leave),
        ):
            start_us = EPOCH_US + (step * 1000 + start + ahead) * 1_000_000
            times = {"duration_sec": float(end - start), "start_us": start_us, "task": 0}
            lines.append({"timestamp": "2026-01-05T08:00:00+00:00", "event": event, **times})
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def shapley(arrivals: list[int]) -> list[float]:
    """Return how much each worker delays the last arrival, on average over all orders of joining."""
    first = min(arrivals)
    orders = list(permutations(range(len(arrivals))))
    blame = [0.0] * len(arrivals)
    for order in orders:
        reached = first
        for worker in order:
            blame[worker] += max(0, arrivals[worker] - reached)
            reached = max(reached, arrivals[worker])
    return [delay / len(orders) for delay in blame]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=5))
def test_blame_is_the_shapley_value_and_gain_what_the_last_one_alone_could_save(arrivals: list[int]) -> None:
    with TemporaryDirectory() as folder:
        write_barrier(Path(folder), arrivals)
        table = {row["worker"]: row for row in barrier_table(open_run(folder).digest).iter_rows(named=True)}
    for worker, blame in enumerate(shapley(arrivals)):
        others = [arrival for other, arrival in enumerate(arrivals) if other != worker]
        assert table[worker]["caused_wait_sec"] == pytest.approx(blame, abs=1e-5)
        assert table[worker]["possible_saving_sec"] == pytest.approx(
            max(0, arrivals[worker] - max(others)), abs=1e-5
        )
        assert table[worker]["arrival_sec"] == pytest.approx(arrivals[worker] - min(arrivals), abs=1e-5)
        assert table[worker]["wait_sec"] == pytest.approx(max(arrivals) + 1 - arrivals[worker], abs=1e-5)


def test_three_that_come_together_share_the_blame(tmp_path: Path) -> None:
    write_barrier(tmp_path, [0, 100, 100, 100])
    table = barrier_table(open_run(tmp_path).digest)
    assert table["caused_wait_sec"].to_list() == pytest.approx([0, 100 / 3, 100 / 3, 100 / 3])
    assert table["possible_saving_sec"].to_list() == pytest.approx([0] * 4)


def test_a_skewed_clock_changes_nothing_and_is_shown(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write_barrier(tmp_path / "even", [0, 10, 30], step)
        write_barrier(tmp_path / "skewed", [0, 10, 30], step, skew={1: 500})
    even, skewed = (open_run(tmp_path / name).digest for name in ("even", "skewed"))
    assert barrier_table(even).equals(barrier_table(skewed))
    clocks = {row["worker"]: row for row in clock_table(skewed).iter_rows(named=True)}
    assert clocks[1]["offset_sec"] == pytest.approx(500)
    assert all(row["residual_sec"] == pytest.approx(0) for row in clocks.values())


def test_a_clock_that_drifts_leaves_a_residual(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write_barrier(tmp_path, [0, 10, 30], step, skew={1: 5 * step})
    clocks = {row["worker"]: row for row in clock_table(open_run(tmp_path).digest).iter_rows(named=True)}
    assert clocks[1]["offset_sec"] == pytest.approx(10)
    assert clocks[1]["residual_sec"] == pytest.approx(5)


def test_missing_workers_are_a_doubt_and_nobody_is_blamed(tmp_path: Path) -> None:
    write_barrier(tmp_path, [0, 10, 30], 1)
    write_barrier(tmp_path, [0, 10], 2)
    digest = open_run(tmp_path).digest
    doubts = set(barrier_table(digest).select("step", "doubt").iter_rows())
    assert doubts == {(1, None), (2, "some workers are missing")}
    assert blame_table(digest)["barriers"].to_list() == [1, 1, 1]


def test_one_worker_alone_is_no_evidence(tmp_path: Path) -> None:
    write_barrier(tmp_path, [5])
    run = open_run(tmp_path)
    assert barrier_table(run.digest)["doubt"].to_list() == ["only one worker"]
    assert blame_table(run.digest).is_empty()
    assert chain_of(run.digest, 1) is None


def test_workers_that_do_not_leave_together_are_a_doubt(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write_barrier(tmp_path, [0, 1, 2], step, skew={1: 100 if step == 2 else 0})
    doubts = barrier_table(open_run(tmp_path).digest).filter(step=2)["doubt"].unique().to_list()
    assert doubts == ["the workers did not leave together"]


def test_the_chain_of_one_step_has_the_doubts_of_the_whole_run(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write_barrier(tmp_path, [0, 1, 2], step, skew={1: 100 if step == 2 else 0})
    run = open_run(tmp_path)
    assert chain_of(run.digest, 2) is None
    assert chain_of(run.digest, 3) is not None


def test_the_chain_walks_along_the_ledger_to_the_last_worker(tmp_path: Path) -> None:
    slow = SlowEngine(2, 1, 8.0)
    run = open_run(synthetic_run(tmp_path, steps=3, workers=3, requests=8, causes=[slow]))
    chain = chain_of(run.digest, 2)
    assert chain is not None
    assert (chain.step, chain.worker, chain.barrier) == (2, 1, 0)
    assert sum(link.sec for link in chain.links) == pytest.approx(chain.sec)
    longest = max(chain.links, key=lambda link: link.sec)
    assert longest.part == "engine"
    assert longest.sec > 2 * longest.others_sec
    last = run.digest.requests.filter(step=2, worker=1).sort("end_us").row(-1, named=True)
    assert longest.request_id == last["request_id"]


def test_the_chain_names_preprocessing_and_not_the_engine_call_after_it(tmp_path: Path) -> None:
    slow = SlowPart(2, 1, seconds=60.0, event="preprocessing_duration")
    run = open_run(synthetic_run(tmp_path, steps=3, workers=3, requests=8, causes=[slow]))
    chain = chain_of(run.digest, 2)
    assert chain is not None
    assert (chain.worker, chain.links[0].part, chain.links[0].event) == (
        1,
        "preprocess",
        "preprocessing_duration",
    )
    assert chain.links[0].sec == pytest.approx(60, abs=1)
    assert chain.links[0].others_sec < 1
