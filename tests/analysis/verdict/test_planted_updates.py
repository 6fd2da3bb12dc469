"""What is planted in weight updates of whole runs is found in the verdict; clean updates accuse nobody."""

import pytest
from planted_weights import CAUSES, causes_in, run_with_updates

from sglang_instrument.analysis import lineage, open_run


@pytest.mark.parametrize("cause", CAUSES)
def test_what_is_planted_is_found_and_nothing_else(tmp_path, cause):
    # One run of each; benchmarks/test_chances.py tries thirty.
    assert causes_in(run_with_updates(tmp_path, 0, **CAUSES[cause])) == {cause}


def test_an_update_that_aborts_what_ran_is_found_where_a_slow_server_holds_it_open_for_later_calls(tmp_path):
    folder = run_with_updates(tmp_path, 1, aborts=True, slow_sec=3.0)
    assert causes_in(folder) == {"aborting-update", "slow-update"}


def test_updates_in_which_nothing_went_wrong_accuse_nobody(tmp_path):
    assert causes_in(run_with_updates(tmp_path, 0)) == set()


def test_every_call_after_the_update_without_a_flush_is_named_with_its_cached_tokens(tmp_path):
    rows = lineage(open_run(run_with_updates(tmp_path, 1, keeps_cache=True), cached=False))
    stale = rows.filter(stale_most=20)
    assert len(stale) == len(rows.filter(first_weights=stale["first_weights"][0])) > 0
    assert stale["stale_most"].to_list() == stale["cached_tokens"].to_list()
