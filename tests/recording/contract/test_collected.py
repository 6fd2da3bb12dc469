"""Objects that a program drops are collected, although their spans never ended and refer back to them."""

import contextvars
import gc
import textwrap
import types
import weakref

import pytest

from sglang_instrument import bind, instrument, span, step
from sglang_instrument.patching.probes.probe import probes_for
from sglang_instrument.patching.rewriting.patcher import Patcher
from sglang_instrument.patching.tables.reading import parse_table
from sglang_instrument.recording.measure import spans
from sglang_instrument.recording.measure.context import CURRENT, UNBOUND
from sglang_instrument.testing import records

SEEN = contextvars.ContextVar("a variable of the program")
CYCLES = 20


class Thing:
    """An object of the program, to which reference cycles lead back."""

    size = 3

    def __init__(self):
        self.held = []


@types.coroutine
def pause():
    yield


def left_over(start, let_go=lambda: None):
    """Start `start(thing)` in a context that refers to the thing, drop both; return what stays alive."""
    gone = []
    for _ in range(CYCLES):
        thing = Thing()
        context = contextvars.copy_context()
        context.run(SEEN.set, thing)
        pending = context.run(start, thing)
        thing.held += [pending, context]
        context.run(pending.send, None)
        gone.append(weakref.ref(thing))
        del thing, pending, context
    let_go()
    gc.collect()
    return sum(reference() is not None for reference in gone)


@pytest.fixture(autouse=True)
def seen():
    gc.freeze()  # garbage collections then visit only new objects
    with records() as captured:
        yield captured
    assert CURRENT.get() is UNBOUND
    assert not spans.OPEN


async def plain(x):
    await pause()


async def in_bind(x):
    with bind(request_id="r", turn=1):
        await pause()


async def in_step(x):
    with step(3), bind(worker=1):
        await pause()


def generator_in_bind(x):
    with bind(step=3, turn=1):
        yield x


async def in_spans(x):
    with span("tool_execution", thing=x, phase=x, things=[x]) as outer, span("parse", thing=x):
        outer.add(more=x)
        await pause()


async def in_span_named_by_it(x):
    with span(x), bind(request_id=x, turn=x, step=x, worker=x, role=x, validate=x):
        await pause()


FIELDS = {"n": "x.size", "r": "result"}
OF_ITEMS = {"last": "item", "n": "x.size"}


@pytest.mark.parametrize(
    "function",
    [plain, in_bind, in_step, generator_in_bind, in_spans, in_span_named_by_it],
    ids=lambda function: function.__name__,
)
def test_a_coroutine_waiting_in_a_block_is_collected(function):
    assert left_over(function) == 0


@pytest.mark.parametrize(
    ("event", "options"),
    [
        ("call", {}),
        ("call", {"fields": FIELDS}),
        ("call", {"bind": {"turn": "x.size", "request_id": "x"}}),
        ("tool_execution", {"bind": {"turn": "x.size"}, "fields": FIELDS}),
        ("tool_execution", {"fields": FIELDS}),
        ("generate", {"phase": "step", "bind": {"step": "x.size"}}),
    ],
)
def test_an_instrumented_coroutine_that_waits_is_collected(event, options):
    assert left_over(instrument(event, **options)(plain)) == 0


@pytest.mark.parametrize("event", ["items", "tool_execution"])
@pytest.mark.parametrize("options", [{}, {"fields": OF_ITEMS}, {"fields": OF_ITEMS, "phase": "request"}])
def test_an_instrumented_generator_that_gave_an_item_is_collected(event, options):
    @instrument(event, **options)
    def items(x):
        yield x
        yield x

    assert left_over(items) == 0


PROGRAM = """
import types

@types.coroutine
def pause():
    yield

async def call(x):
    local = x
    await pause()
    return local

async def ending(x):
    local = x
    try:
        return local
    finally:
        await pause()

def items(x):
    local = x
    yield local
    yield local

async def outer(x):
    await inner(x)
    await pause()

async def inner(x):
    return x
"""
EXIT = {"r": "result", "n": "local.size", "l": "local"}
TABLES = {
    "fields of a region": ("call", {"event": "e", "exit": EXIT}),
    "values handed over": ("ending", {"event": "e", "exit": EXIT}),
    "values handed over, watched": ("ending", {"event": "tool_execution", "exit": EXIT}),
    "bound": ("ending", {"event": "e", "bind": {"step": "x.size", "request_id": "x"}, "exit": EXIT}),
    "a root that collects": (
        "ending",
        {"event": "e", "root": True, "exit": {"n": "size(inside.other)"} | EXIT},
    ),
    "watched and synced": ("ending", {"event": "barrier_wait_duration", "exit": EXIT}),
    "an item": ("items", {"event": "e", "generator": True, "exit": {"last": "item", "n": "local.size"}}),
    "an item, watched": ("items", {"event": "tool_execution", "generator": True, "exit": {"last": "item"}}),
    "the last item": (
        "items",
        {"event": "e", "generator": True, "ends": "item.size", "exit": {"last": "item", "l": "local"}},
    ),
    "not the last item": (
        "items",
        {"event": "e", "generator": True, "ends": "item.nothing | local.no", "exit": {"last": "item"}},
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_region_that_does_not_end_is_collected(name):
    target, region = TABLES[name]
    assert left_over_of_program({target: [region]}, target) == 0


def test_a_region_whose_inner_ones_have_ended_is_collected():
    regions = {
        "outer": [{"event": "outer", "exit": {"n": "inside.inner[*].r"}}],
        "inner": [{"event": "inner", "exit": {"r": "result"}}],
    }
    assert left_over_of_program(regions, "outer") == 0


def left_over_of_program(regions, target):
    import importlib.util
    import sys
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "collected_program.py"
        path.write_text(textwrap.dedent(PROGRAM))
        spec = importlib.util.spec_from_file_location("collected_program", path)
        module = sys.modules["collected_program"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        patches = [{"target": name, "region": of_target} for name, of_target in regions.items()]
        table = parse_table("t.toml", {"trainer": "t", "module": "collected_program", "patch": patches})
        patcher = Patcher(
            [table], make_probe=probes_for([region for patch in table.patches for region in patch.regions])
        )
        patcher.install()
        try:
            assert {site.state for site in patcher.results()} == {"found"}, patcher.results()
            return left_over(getattr(module, target))
        finally:
            patcher.uninstall()
            del sys.modules["collected_program"]


def test_a_chain_of_tasks_each_begun_in_the_block_of_the_one_before_keeps_two_contexts_at_most():
    context = contextvars.copy_context()
    for number in range(100):

        def begin(number=number):
            with bind(turn=number):
                return contextvars.copy_context()

        context = context.run(begin)
    bound, length = context.run(CURRENT.get), 0
    while bound is not None:
        bound, length = bound.outer, length + 1
    assert length <= 3  # the last one is UNBOUND


def test_a_block_that_was_left_elsewhere_does_not_keep_the_one_around_it_bound():
    def items():
        with bind(turn=1):
            yield

    with bind(request_id="r"):
        left = items()
        next(left)
        contextvars.copy_context().run(left.close)
    assert CURRENT.get() is UNBOUND
