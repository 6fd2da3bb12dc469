"""A region with `every` records at most one run in so many seconds, and reads no field of the others."""

import pytest
from planted import plant, table

from sglang_instrument.errors import TableError
from sglang_instrument.patching.probes import interval
from sglang_instrument.patching.probes.probe import probes_for
from sglang_instrument.patching.rewriting.patcher import Patcher
from sglang_instrument.testing import records

SOURCE = """
def run_batch(batch):
    return len(batch)
"""
GAUGES = {"event": "gauges", "phase": "engine", "emit": "enter", "every": 2, "enter": {"size": "size(batch)"}}


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(interval, "perf_counter", lambda: now[0])
    return now


@pytest.fixture
def patch(tmp_path, monkeypatch):
    patchers = []

    def patched(**more):
        monkeypatch.syspath_prepend(tmp_path)
        module = plant(tmp_path, SOURCE)
        planted = table({"target": "run_batch", "region": [{**GAUGES, **more}]})
        patcher = Patcher([planted], make_probe=probes_for(planted.patches[0].regions), wrap=None)
        patcher.install()
        patchers.append(patcher)
        return module.run_batch

    yield patched
    for patcher in patchers:
        patcher.uninstall()


def sizes_of(recorded):
    return [record["extra"]["size"] for record in recorded]


def test_the_first_run_is_recorded_and_then_the_next_one_after_the_time(patch, clock):
    run_batch = patch()
    with records() as recorded:
        for seconds, size in ((0, 1), (0.5, 2), (1.4, 3), (0.2, 4), (1.9, 5), (0.1, 6)):
            clock[0] += seconds
            assert run_batch(range(size)) == size
    assert sizes_of(recorded) == [1, 4, 6]


def test_a_run_that_a_condition_leaves_out_takes_no_turn(patch, clock):
    run_batch = patch(when="size(batch)")
    with records() as recorded:
        assert [run_batch([]), run_batch([7])] == [0, 1]
    assert sizes_of(recorded) == [1]


@pytest.mark.parametrize("every", [0, -1, True, "1", float("nan"), float("inf")])
def test_a_wrong_number_of_seconds_is_named(every):
    with pytest.raises(TableError, match="every must be a number of seconds over 0"):
        table({"target": "f", "region": [{**GAUGES, "every": every}]})


def test_spans_cannot_be_left_out_by_time():
    with pytest.raises(TableError, match="every needs emit = 'enter'"):
        table({"target": "f", "region": [{**GAUGES, "emit": "span"}]})
