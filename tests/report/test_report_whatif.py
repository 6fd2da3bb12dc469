"""The sliders of a large run cover every step: by its busiest workers, or by steps at equal distances."""

from pathlib import Path

import pytest

from sglang_instrument.analysis import open_run, what_if
from sglang_instrument.analysis.changes.replaying.rules import Rules
from sglang_instrument.report.html import grid
from sglang_instrument.testing import SlowEngine, synthetic_run


@pytest.mark.parametrize(("most", "workers"), [(10_000, 0), (60, 1), (120, 2)])
def test_every_step_is_computed_by_as_many_of_its_busiest_workers_as_there_is_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, workers: int
) -> None:
    slow = SlowEngine(2, 1, factor=6.0)
    logs = synthetic_run(tmp_path / "exp", steps=3, workers=4, requests=8, seed=5, causes=[slow])
    digest = open_run(logs).digest
    turns = len(digest.turns)
    monkeypatch.setattr(grid, "_MOST_ROWS", most if not workers else turns * workers // 3)
    answer = grid.whatif_grid(digest)
    assert answer["steps"] == [1, 2, 3]
    assert bool(answer["workers"]) == bool(workers)
    assert answer["recorded_sec"] == pytest.approx(what_if(digest, Rules())["recorded_sec"].to_list())


def test_of_too_many_steps_some_are_computed_at_equal_distances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = synthetic_run(tmp_path / "exp", steps=6, workers=2, requests=4, seed=5)
    digest = open_run(logs).digest
    monkeypatch.setattr(grid, "_MOST_ROWS", len(digest.turns) // 4)
    answer = grid.whatif_grid(digest)
    assert answer["of_steps"] == 6
    assert answer["steps"][0] == 1
    assert 2 <= len(answer["steps"]) < 6
    assert answer["workers"] == 1
