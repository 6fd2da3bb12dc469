"""A region with `tracker` gives a local more entries from its begin on, and changes nothing else."""

import asyncio
import inspect

import pytest
from planted import plant, snapshot, table

from sglang_instrument.patching.probes.probe import probes_for
from sglang_instrument.patching.probes.tracker_probe import feed_trackers
from sglang_instrument.patching.rewriting.patcher import Patcher

SOURCE = '''
def log(args, metrics, step_key="n"):
    """doc"""
    before = dict(metrics)
    given = []
    given.append((metrics, step_key))
    return before, metrics, given


async def later(data, step):
    return data


def held(data, step):
    return lambda: data


def maybe(step):
    if step:
        data = {}
    return step
'''


class Feed:
    """Adds the step to what is logged."""

    def __init__(self):
        self.started = 0

    def start(self):
        self.started += 1

    def along(self, data, step, backends):
        return {**data, "step": step}


@pytest.fixture
def feed():
    feed = Feed()
    feed_trackers(feed)
    yield feed
    feed_trackers(None)


@pytest.fixture
def patched(tmp_path, monkeypatch, feed):
    """Plant the source, and patch functions of it: `patched({name: region})` returns module and patcher."""
    patchers = []

    def patch(**regions):
        monkeypatch.syspath_prepend(tmp_path)
        module = plant(tmp_path, SOURCE)
        entries = [
            {"target": name, "region": wanted if isinstance(wanted, list) else [wanted]}
            for name, wanted in regions.items()
        ]
        made = table(*entries)
        every = [region for patch in made.patches for region in patch.regions]
        patcher = Patcher([made], make_probe=probes_for(every), wrap=None)
        before = snapshot(module)
        patcher.install()
        patchers.append((patcher, module, before))
        return module, {site.region.event: site for site in patcher.results()}

    yield patch
    for patcher, module, before in patchers:
        patcher.uninstall()
        assert snapshot(module) == before


def region(event="tracker_log", data="data", step="step", **more):
    return {"event": event, "phase": "other", "tracker": {"data": data, "step": step}, **more}


def test_the_local_has_more_entries_from_the_begin_of_the_region_on(patched):
    span = {"event": "whole", "phase": "other"}
    module, sites = patched(log=[span, region(data="metrics", step='metrics["n"]', at="step_key")])
    assert {site.state for site in sites.values()} == {"found"}
    mine = {"n": 3}
    before, after, given = module.log(None, mine)
    assert mine == before == {"n": 3}
    assert after == {"n": 3, "step": 3}
    assert given == [(after, "n")]
    assert inspect.signature(module.log).parameters["step_key"].default == "n"
    assert module.log.__doc__ == "doc"


def test_a_coroutine_and_a_local_of_a_closure_get_them_too(patched):
    module, sites = patched(later=region("a"), held=region("b"))
    assert {site.state for site in sites.values()} == {"found"}
    assert asyncio.run(module.later({}, 1)) == {"step": 1}
    assert module.held({}, 2)() == {"step": 2}


def test_without_a_step_nothing_is_added(patched):
    module, _ = patched(log=region(data="metrics", step='metrics["n"]'))
    mine = {}
    assert module.log(None, mine)[1] is mine


def test_a_local_that_may_have_no_value_is_refused(patched):
    module, sites = patched(maybe=region())
    assert sites["tracker_log"].state == "refused"
    assert "no local 'data'" in sites["tracker_log"].note
    assert module.maybe(1) == 1


def test_a_region_without_data_only_says_that_a_tracker_is_made(patched, feed):
    module, sites = patched(log={"event": "open", "phase": "other", "tracker": {}})
    assert sites["open"].state == "found"
    mine = {"n": 3}
    assert module.log(None, mine)[1] is mine
    assert feed.started == 1
