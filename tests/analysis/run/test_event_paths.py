"""The paths of events have the times that a computation by brute force finds, and lose none."""

from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_steps import TICK_US, Made, brute_parents, steps_of_a_worker, write_step

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.answers.events import path_table
from sglang_instrument.analysis.run.event_paths import SEPARATOR
from sglang_instrument.testing import synthetic_run


def brute_paths(made: Made) -> dict[str, dict[str, float]]:
    """Return the sums of each path: a look at each tick of each span."""
    spans, parents = made.spans, brute_parents(made)

    def path_of(number: int) -> str:
        above = parents[number]
        event = spans[number].event
        return event if above is None else f"{path_of(above)}{SEPARATOR}{event}"

    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for number, span in enumerate(spans):
        sums[path_of(number)]["count"] += 1
        sums[path_of(number)]["total_sec"] += (span.end - span.start) * TICK_US / 1e6
    for tick in range(spans[-1].end):
        is_open = [number for number, span in enumerate(spans) if span.start <= tick < span.end]
        working = [number for number in is_open if number not in {parents[other] for other in is_open}]
        for number in working:
            sums[path_of(number)]["without_nested_sec"] += TICK_US / 1e6
            sums[path_of(number)]["steps_sec"] += TICK_US / 1e6 / len(working)
    return sums


@settings(max_examples=25, deadline=None)
@given(steps_of_a_worker(), st.booleans())
def test_paths_have_the_times_of_their_spans(made: Made, twice: bool) -> None:
    expected = brute_paths(made)
    with TemporaryDirectory() as folder:
        for worker in range(1 + twice):
            write_step(Path(folder), made, worker=worker)
        table = path_table(open_run(folder))
    for worker in range(1 + twice):
        rows = {row["path"]: row for row in table.filter(worker=worker).iter_rows(named=True)}
        assert set(rows) == set(expected)
        for path, sums in expected.items():
            for name in ("count", "total_sec", "without_nested_sec", "steps_sec"):
                assert rows[path][name] == pytest.approx(sums[name], abs=1e-5), (path, name)


def test_wall_times_of_a_worker_add_up_to_its_step_and_events_of_others_do_not_count(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"steps": 2, "workers": 2, "requests": 6, "seed": 3, "validate_every": 2}
    run = open_run(synthetic_run(tmp_path / "exp", **shape))
    table = path_table(run)
    key = ["validate", "step", "worker"]
    sums = table.group_by(key).agg(pl.col("steps_sec").sum()).sort(key)
    steps = run.digest.of_workers().steps.sort(key)
    assert sums.select(key).rows() == steps.select(key).rows()
    assert sums["steps_sec"].to_list() == pytest.approx(steps["duration_sec"].to_list(), abs=1e-3)
    events = {event for path in table["path"] for event in path.split(SEPARATOR)}
    assert {"total_step_duration", "turn_engine_call"} <= events
    training = table.filter(validate=False)
    assert set(training["path"].str.split(SEPARATOR).list.first()) == {"total_step_duration"}


def test_paths_come_from_the_cache_until_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglang_instrument.analysis.store.homes._WORTHWHILE_BYTES", 1)
    folder = synthetic_run(tmp_path / "exp", steps=1, workers=1, requests=2)
    first = path_table(open_run(folder))
    monkeypatch.setattr("sglang_instrument.analysis.run.opening.Run.read_paths", None)
    assert path_table(open_run(folder)).equals(first)
    monkeypatch.undo()
    synthetic_run(folder, steps=2, workers=1, requests=2)
    assert path_table(open_run(folder))["step"].unique().sort().to_list() == [1, 2]
