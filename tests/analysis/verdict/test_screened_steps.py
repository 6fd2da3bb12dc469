"""Steps, and cuts between them, that are left out beforehand are none that the exact tests would find."""

from itertools import pairwise

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_instrument.analysis.ledger.ledger import STEP
from sglang_instrument.analysis.verdict.detectors.calls import more_work
from sglang_instrument.analysis.verdict.detectors.calls.more_work import _steps_with_more
from sglang_instrument.analysis.verdict.detectors.long_replies import _shifted
from sglang_instrument.analysis.verdict.evidence.chance import chances_of_higher_logs
from sglang_instrument.analysis.verdict.evidence.effects import Limits, Shift, find_shift
from sglang_instrument.analysis.verdict.evidence.series.cuts import cuts_with_least_scatter
from sglang_instrument.analysis.verdict.evidence.tools.slow_tools import _all_slow, _may_be_slow, _some_slow

few = st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=2, max_size=9)
raised = st.tuples(few, few, st.floats(-1, 3)).map(
    lambda sides: [*sides[0], *(value + sides[2] for value in sides[1])]
)
#: Rows of (step, whether it is validation, value): the values of some steps are several times as large.
rows = st.lists(
    st.tuples(st.integers(1, 5), st.booleans(), st.integers(1, 9), st.integers(5, 30)), min_size=1, max_size=8
).map(lambda cells: [(step, kind, times * (1 + n % 4)) for step, kind, times, of in cells for n in range(of)])


def scatter(values: np.ndarray, cut: int) -> float:
    return sum(float(np.abs(side - np.median(side)).sum()) for side in (values[:cut], values[cut:]))


@given(raised)
def test_the_cut_with_least_scatter_is_among_the_chosen_if_it_leaves_the_sides_apart(values):
    series = np.array(values)
    every = range(2, len(series) - 1)
    best = min(every, key=lambda cut: scatter(series, cut))
    chosen = list(cuts_with_least_scatter(series, 2))
    assert all(earlier < later for earlier, later in pairwise(chosen))
    if series[best:].min() > series[:best].max():
        assert best in chosen
    if chosen:
        assert max(scatter(series, cut) for cut in chosen) < scatter(series, best) + 1e-6


def test_a_shift_of_thousands_of_steps_is_found_at_its_step():
    values = np.random.default_rng(0).uniform(0.0, 0.1, 20_000)
    values[7_000:] += 1.0
    steps = pl.DataFrame({"step": range(1, 20_001), "validate": [False] * 20_000, "shared": values})
    shift = find_shift(steps, Limits(times=1.1, spread=0.015))
    assert shift is not None
    assert (shift.step, shift.steps) == (7_001, 13_000)
    assert isinstance(shift, Shift)


@settings(max_examples=50)
@given(rows)
def test_a_step_with_more_is_not_left_out(cells):
    table = pl.DataFrame(cells, schema=["step", "validate", "number_of"], orient="row")
    table = table.with_columns(group=pl.lit(None, pl.String))
    screened = list(_steps_with_more(table))
    with_all = more_work._may_have_more
    try:
        more_work._may_have_more = lambda counts, together: chances_of_higher_logs(
            counts, "number_of", STEP, "validate", together
        ).rows()
        assert list(_steps_with_more(table)) == screened
    finally:
        more_work._may_have_more = with_all


@settings(max_examples=50)
@given(rows)
def test_a_step_with_slow_tools_is_not_left_out(cells):
    table = pl.DataFrame(cells, schema=["step", "validate", "of_turn"], orient="row")
    table = table.with_columns(sec=pl.col("of_turn") * 1.0, worker=pl.int_range(pl.len()) % 2)
    slow = _may_be_slow(table, 2)
    for step, validate in table.select("step", "validate").unique().rows():
        of_kind = table.filter(validate=validate)
        mine, others = of_kind.filter(step=step), of_kind.filter(pl.col("step") != step)
        if others.is_empty():
            continue
        tries = 2 * (1 + others["step"].n_unique())
        if len(others) >= 5 and (
            _all_slow(mine, others, "search", tries) or _some_slow(mine, others, "search", tries)
        ):
            assert (step, validate) in slow


def test_a_planted_step_alone_is_looked_at():
    cells = [(step, (3 if step == 4 else 1) * (1 + n % 4)) for step in range(1, 9) for n in range(40)]
    table = pl.DataFrame(cells, schema=["step", "of_turn"], orient="row").with_columns(
        validate=pl.lit(value=False), sec=pl.col("of_turn") * 1.0, number_of="of_turn", group=pl.lit("")
    )
    assert list(_shifted(table)) == [(4, False)]
    assert _may_be_slow(table, 1) == [(4, False)]
    assert [place for place, _ in _steps_with_more(table)] == [{"step": 4, "validate": False}]
