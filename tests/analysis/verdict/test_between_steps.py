"""Gaps between steps: which phase grew, which gaps count, and which growth matters."""

from pathlib import Path

from made_workers import Step, Worker, write_worker, written

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.analysis.verdict.verdict import findings_of


def steps_with(gaps: list[int], length: int = 60) -> list[Step]:
    return [Step({0: Worker(0, [[("engine_generate", length)]])}, gap, 0, False) for gap in gaps]


def found_in(folder: Path) -> list[Finding]:
    return findings_of(open_run(folder), over=False)


def test_the_phase_that_grew_is_named_and_not_the_longest(tmp_path: Path) -> None:
    gaps = [25, 25, 25, 35, 25, 25]
    begun = written(tmp_path, steps_with(gaps), {})
    for step, (begin, gap) in enumerate(zip(begun, gaps, strict=True)):
        done = begin + 60
        trained = done + 20
        spans = [("trainer_update_actor", done, trained), ("trainer_save_checkpoint", trained, done + gap)]
        write_worker(tmp_path / f"step_{step}" / "trainer_0.jsonl", spans[: 1 + (gap > 25)], 0)
    (finding,) = found_in(tmp_path)
    assert (finding.cause, finding.step, finding.event) == ("between-steps", 3, "trainer_save_checkpoint")


def test_time_without_a_record_is_said_to_be_so(tmp_path: Path) -> None:
    gaps = [25, 25, 25, 45, 25, 25]
    steps = [step._replace(trained=20) for step in steps_with(gaps)]
    written(tmp_path, steps, {})
    (finding,) = found_in(tmp_path)
    assert (finding.cause, finding.step, finding.event) == ("between-steps", 3, None)


def test_one_overlap_does_not_hide_the_gaps(tmp_path: Path) -> None:
    written(tmp_path, steps_with([5, 5, -1, 5, 30, 5, 5, 5]), {})
    assert [(finding.cause, finding.step) for finding in found_in(tmp_path)] == [("between-steps", 4)]


def test_short_gaps_do_not_count_where_most_steps_overlap(tmp_path: Path) -> None:
    written(tmp_path, steps_with([-9, -9, -9, 30, -9, 5, -9, 5, -9, 5, -9]), {})
    assert found_in(tmp_path) == []


def test_a_growth_that_costs_nearly_nothing_is_no_finding(tmp_path: Path) -> None:
    written(tmp_path, steps_with([1, 2, 3, 4, 5, 6, 7, 8, 9], length=600), {})
    assert found_in(tmp_path) == []
