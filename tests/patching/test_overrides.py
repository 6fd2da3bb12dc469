"""Methods of subclasses that override a target are measured, once for each call, and named."""

import asyncio
import gc
import sys
import threading
import weakref

import pytest
from planted import plant, snapshot, table

from sglang_instrument.patching.probes.probe import probes_for
from sglang_instrument.patching.rewriting.patcher import Patcher
from sglang_instrument.recording.measure import context, scopes, spans

BASE = """
class Base:
    def work(self, batch):
        tokens = len(batch)
        return self.more(batch)

    def more(self, batch):
        return len(batch)

    async def talk(self, batch):
        tokens = len(batch)
        return tokens

    def items(self, batch):
        yield from batch

    def told(self, batch):
        return batch
"""
WORK = {
    "target": "Base.work",
    "region": [
        {"event": "work", "bind": {"request_id": "batch[0]"}, "exit": {"tokens": "tokens", "more": "result"}},
        {"event": "part", "at": "more"},
    ],
}
TALK = {"target": "Base.talk", "region": [{"event": "talk", "exit": {"tokens": "tokens"}}]}
ITEMS = {"target": "Base.items", "region": [{"event": "items", "generator": True}]}
SUB = """
from planted_module import Base


class Sub(Base):
    def work(self, batch):
        return 7
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("planted_module", "planted_sub"):
        sys.modules.pop(name, None)


@pytest.fixture
def start():
    """Install patchers that record; `start.records()` returns what they recorded."""
    patchers, recorded, before = [], [], spans.current_buffer()

    def started(*patches, **keys):
        planted = table(*patches, **keys)
        regions = [region for patch in planted.patches for region in patch.regions]
        patcher = Patcher([planted], make_probe=probes_for(regions))
        patchers.append(patcher)
        patcher.install()
        return patcher

    started.records = lambda: [(span.event, span.extra or {}) for span in recorded]
    started.recorded = recorded
    spans.use_buffer(recorded, int)
    yield started
    spans.use_buffer(before, int)
    for patcher in patchers:
        patcher.uninstall()


def placed(patcher):
    return {
        (str(site.target).removeprefix("planted_"), site.region.event): site.state
        for site in patcher.results()
    }


def test_an_override_is_measured_as_soon_as_its_module_is_imported(folder, start):
    plant(folder, BASE)
    patcher = start(WORK)
    sub = plant(folder, SUB, "planted_sub")
    assert sub.Sub().work(["r1"]) == 7
    assert start.records() == [("work", {"more": 7})]
    assert start.recorded[0].context.request_id == "r1"
    assert placed(patcher) == {
        ("module:Base.work", "work"): "found",
        ("module:Base.work", "part"): "found",
        ("sub:Sub.work", "work"): "found",
    }


def test_an_import_does_not_wait_for_a_thread_that_patches(folder, start):
    plant(folder, BASE)
    patcher = start(WORK)
    patches, imported = threading.Event(), threading.Event()

    def patch():  # as a thread that needs, for a table's version, a module that the other one imports
        with patcher._lock:
            patches.set()
            imported.wait()

    thread = threading.Thread(target=patch)
    thread.start()
    patches.wait()
    try:
        importing = threading.Thread(target=plant, args=(folder, SUB, "planted_sub"), daemon=True)
        importing.start()
        importing.join(60)
        assert not importing.is_alive()
    finally:
        imported.set()
        thread.join()
    patcher.find_overrides()
    assert sys.modules["planted_sub"].Sub().work(["r1"]) == 7
    assert [event for event, _ in start.records()] == ["work"]


def test_an_override_that_was_imported_before_the_target_is_found_with_it(folder, start):
    plant(folder, BASE)
    sub = plant(folder, SUB, "planted_sub")
    start(WORK)
    sub.Sub().work(["r1"])
    assert [event for event, _ in start.records()] == ["work"]


def test_uninstall_leaves_a_subclass_and_its_base_as_they_were(folder, start):
    module = plant(folder, BASE)
    sub = plant(folder, SUB, "planted_sub")
    before = snapshot(module, module.Base, sub, sub.Sub)
    patcher = start(WORK)
    sub.Sub().work(["r1"])
    assert patcher.uninstall() == []
    assert snapshot(module, module.Base, sub, sub.Sub) == before
    assert not context.CURRENT.get().request_id


def test_an_override_that_calls_super_gives_one_record_which_has_the_fields_of_both(folder, start):
    module = plant(folder, BASE)
    sub = plant(
        folder,
        """
from planted_module import Base

class Sub(Base):
    def work(self, batch):
        return 10 + super().work(batch)

class SubSub(Sub):
    def work(self, batch):
        return 100 + super().work(batch)

class Sideways(Base):
    def work(self, batch):
        return Base().work(batch)      # another object
""",
        "planted_sub",
    )
    start(WORK)
    assert sub.Sub().work(["r1", "r2"]) == 12
    assert start.records() == [("part", {}), ("work", {"tokens": 2, "more": 12})]
    start.recorded.clear()
    assert sub.SubSub().work(["r1"]) == 111
    assert start.records() == [("part", {}), ("work", {"tokens": 1, "more": 111})]
    start.recorded.clear()
    assert module.Base().work(["r1"]) == 1
    assert start.records() == [("part", {}), ("work", {"tokens": 1, "more": 1})]
    start.recorded.clear()
    sub.Sideways().work(["r1"])
    assert [event for event, _ in start.records()] == ["part", "work", "work"]


def test_coroutines_of_one_object_that_overlap_are_recorded_each(folder, start):
    plant(folder, BASE)
    sub = plant(
        folder,
        """
import asyncio
from planted_module import Base

class Sub(Base):
    async def talk(self, batch):
        await asyncio.sleep(0)
        reply = await super().talk(batch)
        await asyncio.sleep(0)
        return reply
""",
        "planted_sub",
    )
    start(TALK)
    client = sub.Sub()

    async def all_at_once():
        return await asyncio.gather(*(client.talk("x" * size) for size in range(1, 5)))

    assert asyncio.run(all_at_once()) == [1, 2, 3, 4]
    assert sorted(extra["tokens"] for _, extra in start.records()) == [1, 2, 3, 4]


def test_an_override_that_hides_which_ids_are_bound_is_left_to_the_method_that_it_calls(folder, start):
    plant(folder, BASE)
    sub = plant(
        folder,
        """
from planted_module import Base

class Sub(Base):
    def work(self, *args, **kwargs):
        return super().work(*args, **kwargs)

    def items(self, batch):
        yield from super().items(batch)

    def talk(self, batch):
        return super().talk(batch)
""",
        "planted_sub",
    )
    patcher = start(WORK, TALK, ITEMS)
    sub.Sub().work(["r1"])
    assert list(sub.Sub().items([1, 2])) == [1, 2]
    assert asyncio.run(sub.Sub().talk("ab")) == 2
    assert [event for event, _ in start.records()] == ["part", "work", "items", "talk"]
    assert {span.context.request_id for span in start.recorded[:2]} == {"r1"}
    notes = {str(site.target): site.note for site in patcher.results() if site.state == "refused"}
    assert set(notes) == {"planted_sub:Sub.work", "planted_sub:Sub.items", "planted_sub:Sub.talk"}
    assert "no parameter 'batch'" not in notes["planted_sub:Sub.work"]
    assert "has no parameter batch" in notes["planted_sub:Sub.work"]
    assert not any(site.expected for site in patcher.results() if site.state == "refused")


def test_a_method_that_only_wraps_the_measured_one_is_no_override(folder, start):
    module = plant(folder, BASE)
    patcher = start(WORK)

    def wrapped(function):
        def work(self, *args, **kwargs):
            return function(self, *args, **kwargs)

        return work

    def actor(kind):  # as Ray makes the class of an actor
        return type(kind.__name__, (kind,), {"work": wrapped(kind.work), "__module__": kind.__module__})

    class Sub(module.Base):
        def work(self, batch):
            return 3

    assert actor(module.Base)().work(["r1"]) == 1
    assert actor(Sub)().work(["r1"]) == 3
    patcher.find_overrides()
    start.recorded.clear()
    assert actor(module.Base)().work(["r1"]) == 1
    assert actor(Sub)().work(["r1"]) == 3
    assert [event for event, _ in start.records()] == ["part", "work", "work"]


def test_classes_made_in_functions_are_found_when_a_step_begins(folder, start):
    module = plant(folder, BASE)
    patcher = start(WORK)
    scopes.before_steps(patcher.find_overrides)

    def make():
        class Local(module.Base):
            def work(self, batch):
                return 5

        return Local

    local = make()
    try:
        bound = context.push({"step": 987}, False)
        assert local().work(["r1"]) == 5
        bound.pop()
    finally:
        scopes.before_steps(None)
    assert [event for event, _ in start.records()] == ["work"]
    assert any("<locals>.Local.work" in str(site.target) for site in patcher.results())


def test_a_class_without_source_is_named(folder, start):
    module = plant(folder, BASE)
    patcher = start(WORK)
    names = {"Base": module.Base, "__name__": "typed"}
    exec("class Typed(Base):\n    def work(self, batch):\n        return 5\n", names)
    (site,) = (site for site in patcher.results() if str(site.target) == "typed:Typed.work")
    assert (site.state, site.expected) == ("no-source", False)


def test_a_method_that_a_table_names_is_measured_as_that_table_says(folder, start):
    plant(folder, BASE)
    sub = plant(folder, SUB, "planted_sub")
    start(WORK, {"target": "planted_sub:Sub.work", "region": [{"event": "of_sub"}]})
    sub.Sub().work(["r1"])
    assert [event for event, _ in start.records()] == ["of_sub"]


def test_classes_are_not_kept_alive_by_the_search(folder, start):
    module = plant(folder, BASE)
    patcher = start(WORK)

    class Plain(module.Base):
        pass

    patcher.find_overrides()
    gone = weakref.ref(Plain)
    del Plain
    gc.collect()
    assert gone() is None


def test_imports_show_no_trace_of_the_search(folder, start):
    plant(folder, BASE)
    plain = plant(folder, "x = 1", "planted_sub")
    start(WORK)
    module = plant(folder, "import sys\nspec = type(__spec__)\nloader = type(__loader__)\n", "planted_sub")
    assert module.spec is type(plain.__spec__)
    assert module.loader is type(plain.__loader__)
