"""A finding is right if it names the planted cause: its word, its step, its worker, and its part."""

from dataclasses import replace

import pytest
from planted_runs import is_right

from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.testing.kinds import KINDS, STEP, WORKER


def finding(cause: str, **place: object) -> Finding:
    return Finding(cause, "step", 10.0, "", **place)  # type: ignore[arg-type]


def test_another_part_of_the_step_is_not_right() -> None:
    sorting = KINDS["sort-one"].cause
    judged = finding("post-processing", step=STEP, worker=WORKER, event="sorting_duration")
    assert is_right(judged, sorting)
    assert not is_right(replace(judged, event="padding_duration"), sorting)


def test_another_kind_of_call_is_not_right() -> None:
    judged = finding("slow-call", step=STEP, worker=WORKER, event="engine")
    assert is_right(judged, KINDS["engine-call"].cause)
    assert not is_right(judged, KINDS["tool-call"].cause)


@pytest.mark.parametrize("place", [{"step": STEP + 1, "worker": WORKER}, {"step": STEP, "worker": 0}])
def test_another_place_is_not_right(place: dict[str, int]) -> None:
    cause = KINDS["engine-one"].cause
    assert is_right(finding("engine", step=STEP, worker=WORKER), cause)
    assert not is_right(finding("engine", **place), cause)


def test_a_trend_concerns_no_worker_and_any_step() -> None:
    cause = KINDS["growing-tool"].cause
    assert is_right(finding("trend", event="tool"), cause)
    assert is_right(finding("trend", step=10, event="tool"), cause)
    assert not is_right(finding("trend", event="engine"), cause)
    assert not is_right(finding("trend", worker=WORKER, event="tool"), cause)


def test_of_two_slow_engines_each_may_be_named() -> None:
    cause = KINDS["engine-two"].cause
    named = [
        worker
        for worker in (None, 0, 1, 2, 3)
        if is_right(finding("engine", step=STEP, worker=worker), cause)
    ]
    assert named == [None, WORKER, WORKER + 1]
