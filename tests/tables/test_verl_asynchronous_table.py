"""Check verl's table of asynchronous trainers against the wheels of three versions; nothing is imported."""

import pytest
from wheels import wheel_of

from sglang_instrument.patching.places.source_archives import open_tree
from sglang_instrument.patching.rewriting.check import check
from sglang_instrument.patching.tables.reading import load_table

PHASES = ("generate", "reward", "old_log_prob", "ref_log_prob", "values", "advantage", "update_critic")
TRAINERS = ("SeparateRayPPOTrainer", "OneStepOffRayTrainer", "FullyAsyncTrainer")


def sites_in(version):
    [checked] = check([load_table("verl/asynchronous")], open_tree(wheel_of("verl", version)))
    assert checked.version == version
    return [site for site in checked.sites if site.expected]


@pytest.mark.parametrize("version", ["0.8.0", "0.9.0", "0.9.1"])
def test_every_region_is_found_and_reads_what_its_version_has(version):
    sites = sites_in(version)
    assert [(site.region.event, str(site.target), site.state, site.note) for site in sites] == [
        (site.region.event, str(site.target), "found", "") for site in sites
    ]
    events = {site.region.event for site in sites}
    assert events >= {"trainer_step", "samples_consumed", "samples_dropped", "trainer_update_actor"}
    assert events >= {f"trainer_{phase}" for phase in PHASES}
    for event in ("trainer_step", "trainer_generate", "samples_consumed"):
        targets = [str(site.target) for site in sites if site.region.event == event]
        assert all(any(trainer in target for target in targets) for trainer in TRAINERS), event


def test_the_three_reasons_why_a_buffer_throws_groups_away_are_one_statement_each_with_its_condition():
    dropped = [site for site in sites_in("0.9.1") if str(site.target).endswith("._evict_terminal_groups")]
    assert {site.region.when for site in dropped} == {"stale_uids", "dapo_uids", "failed_uids"}
    assert len({site.lines for site in dropped}) == 1
