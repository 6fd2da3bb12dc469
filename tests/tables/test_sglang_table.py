"""Check the engine's tables against the wheels of SGLang, from the oldest supported version to the newest."""

import pytest
from wheels import wheel_of

from sglang_instrument.patching.places.source_archives import open_tree
from sglang_instrument.patching.rewriting.check import check
from sglang_instrument.patching.tables.reading import load_table
from sglang_instrument.recording.measure.spans import SyncedSpan, kind_for

# The oldest and the newest version, and those that changed code which the table names.
VERSIONS = ["0.4.6.post5", "0.4.9.post6", "0.5.2", "0.5.5", "0.5.10.post1", "0.5.12.post1", "0.5.23"]


#: Events of what older versions cannot do.
LATER = {"scheduler_preempt", "forward_pass"}
#: Before 0.5.20 the scheduler's output streamer has no list of the requests, and replies tell the tiers.
NO_TIERS = "no local for host_tokens, storage_tokens"
BATCH_EVENTS = {
    *("scheduler_batch", "scheduler_result", "model_forward"),
    *("engine_output", "engine_detokenize", "forward_pass"),
}
TABLES = [
    *("sglang/engine", "sglang/requests", "sglang/batches", "sglang/weights", "sglang/gauges"),
    "sglang/disaggregation",
]


@pytest.fixture(scope="module", params=VERSIONS)
def expected(request):
    """The sites of one version's wheel that the tables expect, by table."""
    checked = check([load_table(name) for name in TABLES], open_tree(wheel_of("sglang", request.param)))
    assert [result.version for result in checked] == [request.param] * len(TABLES)
    return {
        name: [site for site in result.sites if site.expected]
        for name, result in zip(TABLES, checked, strict=True)
    }


def test_every_region_of_the_engine_is_found_where_its_version_has_one(expected):
    sites = expected["sglang/engine"]
    assert {str(site.target): site.note for site in sites if site.state != "found"} == {}
    assert {site.region.event for site in sites} == {
        "engine_generate",
        "engine_stream",
        "engine_cache_flush",
        "weights_update",
        "memory_release",
        "memory_resume",
    }


@pytest.mark.parametrize(
    ("table", "events"),
    [
        (
            "sglang/requests",
            {
                *("engine_start", "engine_request", "engine_tokenize", "engine_send", "engine_wait"),
                *("engine_dispatch", "scheduler_receive", "scheduler_admit", "scheduler_finish"),
                *("scheduler_first_tokens", "scheduler_retract", "scheduler_abort", "scheduler_preempt"),
            },
        ),
        ("sglang/gauges", {"scheduler_gauges"}),
        (
            "sglang/disaggregation",
            {
                *("scheduler_bootstrap", "scheduler_first_tokens", "scheduler_preallocate"),
                *("scheduler_transfer", "scheduler_prebuilt"),
            },
        ),
        ("sglang/batches", BATCH_EVENTS),
    ],
)
def test_every_region_of_the_engine_is_found_in_every_version(expected, table, events):
    sites = expected[table]
    assert {site.region.event: site.note for site in sites if site.state != "found"} == {}
    assert {site.region.event for site in sites} | LATER == events | LATER
    noted = {site.note for site in sites if site.note}
    assert noted <= {NO_TIERS}  # every other field has its local


def test_updates_of_weights_and_flushes_are_found_in_every_version(expected):
    sites = expected["sglang/weights"]
    assert {str(site.target): site.note for site in sites if site.state != "found" or site.note} == {}
    others = {"weights_update", "engine_cache_flush", "weights_version", "scheduler_retract"}
    pauses = {site.region.event for site in sites} - others
    assert pauses - {"generation_pause", "generation_continue"} == {"generation_drain"}
    hows = {str(site.target).rpartition("_")[2] for site in sites if site.region.event == "weights_update"}
    assert hows >= {"disk", "distributed", "tensor"}


@pytest.mark.parametrize(
    "name", ["sglang/requests", "sglang/batches", "sglang/weights", "sglang/disaggregation"]
)
def test_nothing_in_the_engines_own_processes_waits_for_the_gpu(name):
    regions = [region for patch in load_table(name).patches for region in patch.regions]
    waiting = [r.event for r in regions if issubclass(kind_for(r.event, r.phase, r.sync), SyncedSpan)]
    assert regions
    assert waiting == []
