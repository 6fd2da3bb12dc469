"""Check AReaL's tables against its wheel, without importing it."""

import pytest
from wheels import wheel_of

from sglang_instrument.patching.places.source_archives import open_tree
from sglang_instrument.patching.rewriting.check import check
from sglang_instrument.patching.tables.reading import load_table


@pytest.fixture(scope="module")
def wheel():
    return open_tree(wheel_of("areal", "1.0.4"))


@pytest.mark.parametrize(
    "name", ["areal/rollout", "areal/engine", "areal/trainer", "areal/sandbox", "areal/tracker"]
)
def test_every_region_is_found_and_every_field_has_its_local(wheel, name):
    [result] = check([load_table(name)], wheel)
    assert result.version == "1.0.4"
    assert [(site.region.event, site.state) for site in result.sites if site.state != "found"] == []
    assert [(site.region.event, site.note) for site in result.sites if "no local" in site.note] == []
