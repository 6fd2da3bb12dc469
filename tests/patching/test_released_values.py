"""A region releases what its fields read before the program's own code runs again."""

import weakref

import pytest
from planted import plant, table

from sglang_instrument.patching.probes.probe import probes_for
from sglang_instrument.patching.rewriting.patcher import Patcher
from sglang_instrument.recording.measure import spans
from sglang_instrument.recording.safety import notices

SOURCE = '''
import weakref

class Big(list):
    pass

class Watch:
    """Notes whether an object lives when the block is left."""

    def __init__(self, alive):
        self.alive = alive
    def __enter__(self):
        return self
    def __exit__(self, *exception):
        self.alive.append(self.watched() is not None)

def inner():
    return 1

def in_finally(alive):
    kv = Big([1, 2, 3])
    watched = weakref.ref(kv)
    try:
        return alive
    finally:
        del kv
        alive.append(watched() is not None)
        inner()

def in_with(alive):
    with Watch(alive) as watch:
        kv = Big([1, 2, 3])
        watch.watched = weakref.ref(kv)
        for kv in [kv]:
            return len(kv)

def in_loop(alive):
    for number in range(2):
        started = number
        try:
            kv = Big([1, 2, 3])
            watched = weakref.ref(kv)
            if number == 1:
                break
            continue
        finally:
            del kv
            alive.append(watched() is not None)

def fails_at_last(alive):
    kv = Big([1, 2, 3])
    try:
        return 1
    finally:
        raise ValueError("at last")

def returns_at_last(alive):
    kv = Big([1, 2, 3])
    try:
        return 1
    finally:
        kv.append(4)
        return 2
'''


ITEMS = """
class Big(list):
    pass

def items():
    for number in range(3):
        yield Big([number])
"""


@pytest.fixture
def patched(tmp_path, monkeypatch):
    """Import the module and patch a function; return the module and the records."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before, recorded, patchers = spans.current_buffer(), [], []

    def patch(target, fields, source=SOURCE, **keys):
        module = plant(tmp_path, source)
        regions = [{"event": "whole", "exit": fields, **keys}]
        planted = table(
            {"target": target, "region": regions}, {"target": "inner", "region": [{"event": "inner"}]}
        )
        everything = [region for patch in planted.patches for region in patch.regions]
        patchers.append(Patcher([planted], make_probe=probes_for(everything)))
        notices.forget()
        patchers[0].install()
        spans.use_buffer(recorded, int)
        return module, recorded

    yield patch
    spans.use_buffer(before, int)
    patchers[0].uninstall()
    assert notices.noticed() == []


KV = {"n": "size(kv)", "r": "size(result)"}


def test_a_local_that_a_finally_deletes_is_freed_there(patched):
    module, recorded = patched("in_finally", {**KV, "calls": "size(inside.inner[*].duration_sec)"})
    assert module.in_finally([]) == [False]
    assert recorded[-1].extra == {"n": 3, "r": 0, "calls": 1}  # other regions are counted to the end


def test_a_local_is_held_no_longer_than_without_a_region_where_a_with_follows(patched):
    module, recorded = patched("in_with", {**KV, "r": "result"})
    assert module.in_with([]) == 3
    assert recorded[-1].extra == {"n": 3, "r": 3}


def test_a_loop_that_is_left_or_goes_on_in_a_try_holds_nothing(patched):
    anchors = {"from": "started", "through": "watched"}
    module, recorded = patched("in_loop", {"n": "size(kv)"}, **anchors)
    alive = []
    module.in_loop(alive)
    assert alive == [False, False]
    assert [span.extra for span in recorded] == [{"n": 3}, {"n": 3}]


def test_an_exception_in_the_finally_records_the_exception(patched):
    module, recorded = patched("fails_at_last", KV)
    with pytest.raises(ValueError, match="at last"):
        module.fails_at_last([])
    assert (recorded[-1].error, recorded[-1].extra) == ("ValueError", None)


def test_a_return_in_the_finally_takes_precedence(patched):
    module, recorded = patched("returns_at_last", {"n": "size(kv)", "r": "result"})
    assert module.returns_at_last([]) == 2
    assert recorded[-1].extra == {"n": 4, "r": 2}


def test_an_item_is_held_no_longer_than_the_consumer_holds_it(patched):
    fields = {"n": "size(item)", "last": "item[0]"}
    module, recorded = patched("items", fields, source=ITEMS, generator=True)
    generator = module.items()
    for _ in range(2):
        item = next(generator)
        watched = weakref.ref(item)
        del item
        assert watched() is None
    generator.close()
    assert recorded[0].extra.items() >= {"n": 1, "last": 1, "items": 2}.items()
