"""A run with one step has nothing to compare it with, and its verdict says so without an error."""

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.verdict.evidence.calls import calls_of
from sglang_instrument.analysis.verdict.excess import excess_table
from sglang_instrument.testing import synthetic_run


def test_the_parts_of_an_only_step_are_an_empty_table_with_all_columns(tmp_path):
    run = open_run(synthetic_run(tmp_path / "run", steps=1, workers=2, requests=4))
    table = excess_table(run.digest, calls_of(run.digest), 1)
    assert table.is_empty()
    assert table.columns == ["part", "sec", "usual_sec", "excess_sec"]
