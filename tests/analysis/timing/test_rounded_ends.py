"""Ends that differ by less than rounding touch: no microsecond costs a span its place on the path."""

from pathlib import Path
from typing import Any

import pytest
from hand_written import EPOCH_US, record, write_file
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_instrument.analysis import open_run, worker_ledger
from sglang_instrument.analysis.ledger.ledger import between_steps
from sglang_instrument.analysis.timing.lanes import ROUNDING_US


def moved(span: dict[str, Any], by_us: int) -> dict[str, Any]:
    """Return a span that starts earlier or later, as rounding may place it."""
    return {**span, "start_us": span["start_us"] + by_us}


def seconds_of(folder: Path) -> dict[tuple[str, str], float]:
    rows = worker_ledger(open_run(folder).digest).iter_rows(named=True)
    return {(row["part"], row["event"]): row["sec"] for row in rows}


@pytest.mark.parametrize("by_us", range(-ROUNDING_US, ROUNDING_US + 1))
def test_what_a_trainer_does_after_its_step_counts_though_it_begins_before_the_end(
    tmp_path: Path, by_us: int
) -> None:
    spans = [
        record("total_step_duration", 0, 10, task=0),
        moved(record("update_actor", 10, 70, task=0, phase="other"), by_us),
    ]
    write_file(tmp_path, 1, 0, spans).rename(tmp_path / "step_1" / "trainer_0.jsonl")
    for step, begin in ((1, 0), (2, 70)):
        write_file(tmp_path, step, 0, [record("total_step_duration", begin, begin + 10, task=0)])
    rows = between_steps(open_run(tmp_path).digest).filter(step=1)
    assert dict(rows.select("event", "sec").iter_rows())["update_actor"] == pytest.approx(60, abs=1e-5)


@pytest.mark.parametrize("by_us", range(-ROUNDING_US, ROUNDING_US + 1))
def test_spans_one_after_the_other_that_overlap_both_count(tmp_path: Path, by_us: int) -> None:
    spans = [
        record("preprocessing_duration", 0, 30, task=0),
        moved(record("sorting_duration", 30, 90, task=0), by_us),
        record("total_step_duration", 0, 90, task=0),
    ]
    write_file(tmp_path, 1, 0, spans)
    spent = seconds_of(tmp_path)
    assert spent["preprocess", "preprocessing_duration"] == pytest.approx(30, abs=1e-5)
    assert spent["postprocess", "sorting_duration"] == pytest.approx(60, abs=1e-5)
    assert sum(spent.values()) == pytest.approx(90, abs=1e-5)


def test_spans_that_overlap_by_more_than_rounding_do_not_both_decide(tmp_path: Path) -> None:
    """The later one did not wait for the earlier one, which a task of its own ran."""
    spans = [
        record("tool_execution", 0, 50, task=1, spawned_by=0),
        record("engine_generate", 40, 90, task=2, spawned_by=0),
        record("total_step_duration", 0, 90, task=0),
    ]
    write_file(tmp_path, 1, 0, spans)
    spent = seconds_of(tmp_path)
    assert ("tool", "tool_execution") not in spent
    assert spent["engine", "engine_generate"] == pytest.approx(50, abs=1e-5)


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(-ROUNDING_US, ROUNDING_US)), min_size=1, max_size=30)
)
def test_chains_of_spans_shorter_than_rounding_end(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[int, int]]
) -> None:
    """Spans of a few microseconds may each lie within rounding of several others; seconds still add up."""
    folder = tmp_path_factory.mktemp("short")
    begin_us, spans = 20, []
    for length_us, by_us in parts:
        span = record("sorting_duration", 0, length_us / 1e6, task=0)
        spans.append({**span, "start_us": EPOCH_US + begin_us + by_us})
        begin_us += length_us
    spans.append(record("total_step_duration", 0, (begin_us + 20) / 1e6, task=0))
    write_file(folder, 1, 0, spans)
    spent = seconds_of(folder)
    assert sum(spent.values()) == pytest.approx((begin_us + 20) / 1e6, abs=1e-9)
    assert all(sec > 0 for sec in spent.values())
