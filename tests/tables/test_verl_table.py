"""Check verl's table against the wheels of five versions, without importing them."""

import pytest
from wheels import wheel_of

from sglang_instrument.patching.places.source_archives import open_tree
from sglang_instrument.patching.rewriting.check import check
from sglang_instrument.patching.tables.reading import load_table

INTERACTIONS = {"interacting_state", "interaction_response", "interaction_start_pending_state"}
VERSIONS = ["0.4.0", "0.4.1", "0.5.0", "0.6.0", "0.6.1"]


@pytest.fixture(scope="module", params=VERSIONS)
def checked(request):
    """The result of checking the table against one version's wheel."""
    [result] = check([load_table("verl/rollout")], open_tree(wheel_of("verl", request.param)))
    assert result.version == request.param
    return result


def test_every_region_is_found_where_its_version_has_one(checked):
    expected = [site for site in checked.sites if site.expected]
    assert [(site.region.event, site.state) for site in expected if site.state != "found"] == []
    absent = {site.region.event for site in checked.sites} - {site.region.event for site in expected}
    wanted = set() if checked.version >= "0.6" else {"log_prob_calculation"}
    assert absent == wanted | (INTERACTIONS if checked.version == "0.4.0" else set())


def test_only_what_a_version_lacks_has_no_local_to_be_read_from(checked):
    notes = {site.region.event: site.note for site in checked.sites if "no local" in site.note}
    wanted = set() if checked.version >= "0.6" else {"async_generate_duration"}
    assert notes.keys() == wanted


@pytest.mark.parametrize("version", [*VERSIONS, "0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1"])
def test_the_tracker_of_every_version_is_found(version):
    [result] = check([load_table("verl/tracker")], open_tree(wheel_of("verl", version)))
    assert [(site.region.event, site.state) for site in result.sites] == [
        ("tracker_open", "found"),
        ("tracker_log", "found"),
    ]
    assert [site.note for site in result.sites if "no local" in site.note] == []
