"""Check verl's tables of server mode against the wheels of seven versions, without importing them."""

import zipfile

import pytest
from wheels import wheel_of

from sglang_instrument.patching.places.source_archives import open_tree
from sglang_instrument.patching.rewriting.check import check
from sglang_instrument.patching.tables.reading import load_table

VERSIONS = ["0.6.0", "0.6.1", "0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1"]
TABLES = ["verl/agent_loop", "verl/server", "verl/trainer"]
#: Locals that earlier versions do not have: (event, first version that has them).
LATER = {
    ("server_wait", "0.7.1"),  # the load balancer returns only the server's handle
    ("weights_update", "0.7.1"),  # the step is not passed to it
    ("turn_engine_call", "0.9.0"),  # a single turn has no request id of its own
}


@pytest.fixture(scope="module", params=VERSIONS)
def checked(request):
    """The result of checking the tables against one version's wheel."""
    return request.param, check(
        [load_table(name) for name in TABLES], open_tree(wheel_of("verl", request.param))
    )


def test_every_region_is_found_where_its_version_has_one(checked):
    version, results = checked
    for result in results:
        assert result.version == version
        expected = [site for site in result.sites if site.expected]
        assert expected
        assert [(s.region.event, str(s.target), s.note) for s in expected if s.state != "found"] == []


def test_only_what_a_version_lacks_has_no_local_to_be_read_from(checked):
    version, results = checked
    seen = {s.region.event for result in results for s in result.sites or () if "no local" in s.note}
    assert seen <= {event for event, before in LATER if version < before}


def test_regions_of_classes_that_verl_removed_are_not_missing():
    [in_process] = check([load_table("verl/rollout")], open_tree(wheel_of("verl", "0.9.1")))
    assert [site for site in in_process.sites if site.expected] == []  # no such class: nothing is missing


def test_a_version_that_nobody_knows_is_patched_as_far_as_it_fits_and_the_rest_is_named(tmp_path):
    zipfile.ZipFile(wheel_of("verl", "0.9.1")).extractall(tmp_path)
    (metadata,) = tmp_path.glob("verl-*.dist-info/METADATA")
    metadata.write_text(metadata.read_text().replace("Version: 0.9.1", "Version: 99.0"))
    metadata.parent.rename(tmp_path / "verl-99.0.dist-info")
    loop = tmp_path / "verl/experimental/agent_loop/tool_agent_loop.py"
    loop.write_text(loop.read_text().replace("_handle_processing_tools_state", "_run_tools"))
    results = check([load_table(name) for name in TABLES], open_tree(tmp_path))
    sites = [site for result in results for site in result.sites if site.expected]
    assert {result.version for result in results} == {"99.0"}
    lost = {site.region.event for site in sites if site.state != "found"}
    assert lost == {"tool_calling_state", "tool_execution", "tool_response_processing"}
    assert len(sites) - len(lost) > 50
