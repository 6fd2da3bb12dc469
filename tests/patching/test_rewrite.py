"""Rewritten functions do what they did, and call their probes where a table says so."""

import asyncio
import inspect
import subprocess
import sys
import textwrap
import traceback

import pytest
from planted import Notes, plant, snapshot, table

from sglang_instrument.patching.rewriting.patcher import Patcher
from sglang_instrument.patching.tables.field_functions import UNBOUND

SOURCE = '''
from __future__ import annotations
import asyncio


def undone(original):
    def f(*args, **kwargs):
        return original(*args, **kwargs)
    return f


def pad(x):
    return x


def cat(x):
    return x


class Base:
    def hi(self, x):
        return x


def make(k):
    held = [k]

    class Inner(Base):
        __secret = 3

        @undone
        def run(self, n, *, m=lambda: 5):
            """doc"""
            s = super().hi(n) + self.__secret + k
            a = pad(n)

            async def inner():
                return a + held[0]

            b = cat(a)
            return [s, a, b, asyncio.run(inner())]

    return Inner


class A(Base):
    async def go(self, n):
        done = []
        for i in range(n):
            x = await asyncio.sleep(0, i)
            try:
                if x == 1:
                    continue
                y = pad(x)
                if x == 3:
                    break
            finally:
                done.append(x)
        return done, y

    async def wait(self, n):
        a = pad(n)
        await asyncio.sleep(30)
        return cat(a)

    async def stream(self, n):
        for i in range(n):
            got = yield pad(i)
        cat(n)

    def count(self, n):
        a = pad(n)
        for i in range(n):
            sent = yield i
        yield
        return "end"

    def delegate(self, n):
        yield from self.count(n)

    def fail(self, n):
        a = pad(n)
        z = (pad(n) + 1) / cat(0) + 7
        return z

    def early(self, n):
        if n > 2:
            return pad(n) * 2
        for i in range(n):
            if i == 1:
                return
        late = cat(n)

    def maybe(self, n):
        if n:
            value = pad(n)
        out = cat(n)
        del n
        return out

    def own_locals(self, n):
        a = pad(n)
        return sorted(locals())

    def calls(self, n):
        return dict(rid=pad(n), x=[cat(y) for y in range(n)])

    @staticmethod
    def static(n):
        return pad(n)

    @classmethod
    def made(cls, n):
        return cls, pad(n)

    @property
    def prop(self):
        return pad(1)
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    yield plant(tmp_path, SOURCE)
    sys.modules.pop("planted_module", None)


@pytest.fixture
def patched(module):
    """Patch regions of one function; return the notes and the sites."""
    installed = []

    def install(target, *regions):
        notes = Notes()
        patcher = Patcher([table({"target": target, "region": list(regions)})], make_probe=notes.probe)
        patcher.install()
        installed.append(patcher)
        return notes, patcher.results()

    yield install
    for patcher in installed:
        assert patcher.uninstall() == []


def test_a_region_opens_before_its_statements_and_closes_behind_them(module, patched):
    notes, _ = patched("A.fail", {"event": "part", "at": "pad"}, {"event": "whole"})
    with pytest.raises(ZeroDivisionError):
        module.A().fail(3)
    expected = [
        ("whole", "open"),
        ("part", "open"),
        ("part", "close"),
        ("whole", "close", "ZeroDivisionError"),
    ]
    assert notes == expected


def test_closures_super_private_names_and_keyword_defaults_go_on_working(module, patched):
    inner = module.make(7)
    module.Inner = inner
    before = inner().run(2)
    notes, sites = patched(
        "Inner.run",
        {"event": "whole", "exit": {"r": "result"}},
        {"event": "pair", "from": "pad", "before": "cat"},
    )
    assert {site.state for site in sites} == {"found"}
    assert inner().run(2) == before
    assert notes.of("whole") == [("open",), ("result", before), ("close",)]
    assert notes.of("pair") == [("open",), ("close",)]


def test_continue_break_and_await_keep_their_meaning(module, patched):
    before = asyncio.run(module.A().go(6))
    notes, _ = patched(
        "A.go",
        {"event": "turn", "block": "sleep", "enter": {"turn": "i"}, "exit": {"x": "x"}},
        {"event": "body", "block": "pad"},
    )
    assert asyncio.run(module.A().go(6)) == before
    turns = notes.of("turn")
    assert [note for note in turns if note[0] == "open"] == [("open", i) for i in range(4)]
    # A region that is left by continue or break hands over its locals, too.
    assert [note for note in turns if note[0] == "leave"] == [("leave", i) for i in range(4)]
    assert notes.of("body") == [("open",), ("close",)] * 4


def test_cancellation_passes_through_and_closes_what_is_open(module, patched):
    notes, _ = patched("A.wait", {"event": "whole"}, {"event": "pair", "from": "pad", "through": "cat"})

    async def cancelled():
        task = asyncio.create_task(module.A().wait(1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert [note for note in notes if note[1] == "close"] == [
        ("pair", "close", "CancelledError"),
        ("whole", "close", "CancelledError"),
    ]


def test_a_returned_value_is_handed_over_before_the_function_is_left(module, patched):
    notes, _ = patched("A.early", {"event": "whole", "exit": {"r": "result", "n": "n"}})
    assert module.A().early(5) == 10
    assert notes.of("whole") == [("open",), ("result", 10, 5), ("close",)]


def test_a_bare_return_and_the_end_of_the_body_hand_over_the_locals_alone(module, patched):
    notes, _ = patched("A.early", {"event": "whole", "exit": {"r": "result", "n": "n"}})
    assert module.A().early(2) is None
    assert module.A().early(0) is None
    assert [note for note in notes if note[1] == "leave"] == [("whole", "leave", 2), ("whole", "leave", 0)]


def test_returns_inside_nested_regions_end_the_inner_one_first(module, patched):
    exit_fields = {"r": "result"}
    notes, _ = patched(
        "A.early",
        {"event": "outer", "exit": exit_fields},
        {"event": "inner", "block": "pad", "exit": exit_fields},
    )
    module.A().early(3)
    assert [note[:2] for note in notes] == [
        ("outer", "open"),
        ("inner", "open"),
        ("inner", "result"),
        ("outer", "result"),
        ("inner", "close"),
        ("outer", "close"),
    ]


def test_a_local_without_a_value_is_handed_over_as_unbound(module, patched):
    notes, _ = patched(
        "A.maybe", {"event": "out", "at": "cat", "enter": {"v": "value", "n": "n"}, "exit": {"v": "value"}}
    )
    assert module.A().maybe(0) == 0
    assert module.A().maybe(4) == 4
    shown = [tuple(map(str, note)) for note in notes.of("out") if note[0] != "close"]
    # `del` unbinds `n` later, so the guard may drop it, too; bound locals are handed over if all are bound.
    assert shown[0] == ("open", "UNBOUND", "UNBOUND")
    assert shown[1] == ("leave", "UNBOUND")
    assert shown[2:] == [("open", "4", "4"), ("leave", "4")]


def test_a_name_that_is_no_local_is_unbound_even_if_the_module_has_it(module, patched):
    notes, _ = patched("A.fail", {"event": "whole", "enter": {"a": "cat", "b": "len", "c": "nowhere"}})
    with pytest.raises(ZeroDivisionError):
        module.A().fail(1)
    assert [str(value) for value in notes[0][2:]] == ["UNBOUND"] * 3


def test_a_name_error_of_the_program_itself_is_not_swallowed(tmp_path, monkeypatch, patched):
    source = "def f(n):\n    if n:\n        x = 1\n    return x\n"
    monkeypatch.syspath_prepend(str(tmp_path))
    module = plant(tmp_path, source)
    patched("f", {"event": "whole", "exit": {"x": "x", "r": "result"}}, {"event": "part", "at": "x"})
    with pytest.raises(UnboundLocalError):
        module.f(0)


def test_generator_regions_see_each_item_and_pass_on_what_is_sent(module, patched):
    notes, sites = patched("A.count", {"event": "items", "generator": True, "exit": {"r": "result"}})
    assert sites[0].state == "found"
    generator = module.A().count(2)
    assert next(generator) == 0
    assert generator.send("sent") == 1
    assert next(generator) is None
    with pytest.raises(StopIteration) as stopped:
        next(generator)
    assert stopped.value.value == "end"
    items = [note[2] for note in notes if note[1] == "item"]
    assert items == [0, 1, None]
    assert notes[-2:] == [("items", "result", "end"), ("items", "close")]


def test_async_generators_are_seen_item_by_item_and_closed_early(module, patched):
    notes, _ = patched("A.stream", {"event": "items", "generator": True})

    async def first_only():
        stream = module.A().stream(5)
        item = await stream.__anext__()
        await stream.aclose()
        return item

    assert asyncio.run(first_only()) == 0
    assert notes.of("items") == [("open",), ("item", 0), ("close", "GeneratorExit")]


@pytest.mark.parametrize(("ends", "handed"), [("n", 5), ("i", 0), ("got", UNBOUND)])
def test_an_item_comes_with_the_locals_that_say_whether_it_is_the_last_where_they_surely_have_a_value(
    module, patched, ends, handed
):
    notes, _ = patched("A.stream", {"event": "items", "generator": True, "ends": ends})

    async def first_only():
        stream = module.A().stream(5)
        await stream.__anext__()
        await stream.aclose()

    asyncio.run(first_only())
    assert notes.of("items")[1] == ("item", 0, handed)


def test_a_generator_that_is_closed_hands_its_locals_over(module, patched):
    notes, _ = patched("A.count", {"event": "items", "generator": True, "exit": {"a": "a", "i": "i"}})
    generator = module.A().count(3)
    generator.close()  # before its first step there are no locals
    assert notes == []
    generator = module.A().count(3)
    assert [next(generator), next(generator)] == [0, 1]
    generator.close()
    assert notes.of("items")[-2:] == [("leave", 3, 1), ("close", "GeneratorExit")]


def test_a_yield_inside_a_region_is_refused_and_the_rest_is_applied(module, patched):
    notes, sites = patched("A.stream", {"event": "around", "block": "pad"}, {"event": "behind", "at": "cat"})
    assert [(site.state, "yield" in site.note) for site in sites] == [("refused", True), ("found", False)]

    async def everything():
        return [item async for item in module.A().stream(2)]

    assert asyncio.run(everything()) == [0, 1]
    assert notes.events == ["behind"]


def test_items_that_a_generator_passes_on_are_seen_and_what_is_sent_goes_on(module, patched):
    notes, sites = patched("A.delegate", {"event": "items", "generator": True})
    assert sites[0].state == "found"
    generator = module.A().delegate(3)
    assert [next(generator), next(generator), generator.send("sent")] == [0, 1, 2]
    generator.close()
    # The item with which the inner generator answers what is sent is not seen.
    assert [note[1] for note in notes.of("items") if note[0] == "item"] == [0, 1]
    assert notes[-1] == ("items", "close", "GeneratorExit")


def test_a_function_that_reads_its_own_locals_sees_none_of_ours(module, patched):
    before = module.A().own_locals(2)
    notes, sites = patched("A.own_locals", {"event": "whole", "enter": {"n": "n"}, "exit": {"a": "a"}})
    assert sites[0].state == "found"
    assert sites[0].note.endswith("not read: a")
    assert module.A().own_locals(2) == before
    assert notes.of("whole") == [("open", 2), ("close",)]


def test_a_captured_argument_passes_through_the_probe(module, patched):
    notes, _ = patched("A.calls", {"event": "call", "at": "dict", "capture": {"rid": "dict(rid)"}})
    assert module.A().calls(3) == {"rid": 3, "x": [0, 1, 2]}
    assert notes.of("call") == [("open",), ("capture", "rid", 3), ("close",)]


def test_a_capture_that_is_not_met_once_is_refused(module, patched):
    _, sites = patched("A.calls", {"event": "call", "at": "dict", "capture": {"y": "cat(y)"}})
    assert sites[0].state == "refused"
    assert "occurs 0 times" in sites[0].note


def test_static_and_class_methods_and_properties_are_reached(module, patched):
    notes, _ = patched("A.static", {"event": "static"})
    made, _ = patched("A.made", {"event": "made"})
    prop, _ = patched("A.prop", {"event": "prop"})
    assert module.A.static(1) == 1
    assert module.A.made(2) == (module.A, 2)
    assert module.A().prop == 1
    assert (notes.events, made.events, prop.events) == (["static"], ["made"], ["prop"])


def test_tracebacks_are_the_same_to_the_column(module, patched):
    def trace():
        try:
            module.A().fail(3)
        except ZeroDivisionError as error:
            frames = traceback.extract_tb(error.__traceback__)[1:]
            return [
                (f.filename, f.name, f.lineno, getattr(f, "colno", 0), getattr(f, "end_colno", 0), f.line)
                for f in frames
            ]

    before = trace()
    patched(
        "A.fail",
        {"event": "whole", "exit": {"r": "result", "z": "z"}},
        {"event": "both", "from": "pad", "through": "cat", "enter": {"a": "a"}},
        {"event": "one", "at": "cat"},
    )
    assert trace() == before


def test_kind_signature_and_name_stay(module, patched):
    functions = [module.A.go, module.A.stream, module.A.count, module.A.early]
    before = [(inspect.signature(f), f.__code__.co_flags, f.__qualname__, f.__doc__) for f in functions]
    for target in ("A.go", "A.stream", "A.count", "A.early"):
        generator = target in ("A.stream", "A.count")
        patched(target, {"event": "whole", "generator": generator, "exit": {"n": "n"}})
    after = [(inspect.signature(f), f.__code__.co_flags, f.__qualname__, f.__doc__) for f in functions]
    assert after == before
    assert inspect.iscoroutinefunction(module.A.go)
    assert inspect.isasyncgenfunction(module.A.stream)


def test_no_name_appears_in_module_or_class(module, patched):
    before = [set(vars(module)), set(vars(module.A))]
    patched("A.early", {"event": "whole", "exit": {"r": "result"}})
    module.A().early(1)
    assert [set(vars(module)), set(vars(module.A))] == before


def test_under_a_tracer_the_function_runs_the_same(module, patched):
    notes, _ = patched("A.go", {"event": "turn", "block": "sleep", "enter": {"i": "i"}, "exit": {"x": "x"}})
    seen = []

    def tracer(frame, event, argument):
        seen.append(frame.f_code.co_name)
        return tracer

    old = sys.gettrace()
    sys.settrace(tracer)
    try:
        result = asyncio.run(module.A().go(6))
    finally:
        sys.settrace(old)
    assert result == ([0, 1, 2, 3], 3)
    assert "go" in seen
    assert len(notes.events) == 4


def test_twenty_nested_blocks_are_refused_before_anything_is_swapped(tmp_path, monkeypatch):
    depth = 19
    lines = ["def deep(n):"] + [f"{' ' * (k + 1)}while n:" for k in range(depth)]
    source = "\n".join(
        [*lines, " " * (depth + 1) + "return n", " return 0", "def other(n):", " return n", ""]
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = plant(tmp_path, source)
    code = module.deep.__code__
    notes = Notes()
    deep = {"target": "deep", "region": [{"event": f"r{k}", "block": "n"} for k in range(4)]}
    other = {"target": "other", "region": [{"event": "other"}]}
    patcher = Patcher([table(deep, other)], make_probe=notes.probe)
    patcher.install()
    states = {site.region.event: (site.state, site.note) for site in patcher.results()}
    assert {states[f"r{k}"][0] for k in range(4)} == {"refused"}
    assert "too many statically nested blocks" in states["r0"][1]
    assert module.deep.__code__ is code
    assert states["other"][0] == "found"
    patcher.uninstall()


def test_regions_of_two_tables_meet_in_one_function(module):
    notes = Notes()
    first = table({"target": "A.early", "region": [{"event": "first"}]}, name="first")
    second = table({"target": "A.early", "region": [{"event": "second", "at": "cat"}]}, name="second")
    before = snapshot(module, module.A)
    patcher = Patcher([first, second], make_probe=notes.probe)
    patcher.install()
    module.A().early(0)
    assert notes.events == ["first", "second"]
    patcher.uninstall()
    assert snapshot(module, module.A) == before


def test_a_region_that_overlaps_another_is_refused_and_names_it(module, patched):
    _, sites = patched(
        "A.wait",
        {"event": "one", "from": "pad", "through": "sleep"},
        {"event": "two", "from": "sleep", "through": "cat"},
        {"event": "three", "at": "cat"},
    )
    assert [site.state for site in sites] == ["found", "refused", "found"]
    assert "overlaps one" in sites[1].note


def test_a_class_pickled_by_value_keeps_its_probes(tmp_path):
    script = """
        import cloudpickle, pickle, subprocess, sys
        from sglang_instrument.patching.rewriting.patcher import Patcher
        from sglang_instrument.patching.probes.probe import probes_for
        from sglang_instrument.patching.tables.reading import parse_table
        import travelling
        region = {"event": "work", "enter": {"n": "n"}, "exit": {"r": "result"}}
        patch = {"target": "Actor.work", "region": [region]}
        content = {"trainer": "x", "module": "travelling", "patch": [patch]}
        table = parse_table("x", content)
        regions = [region for patch in table.patches for region in patch.regions]
        Patcher([table], make_probe=probes_for(regions)).install()
        cloudpickle.register_pickle_by_value(travelling)
        sent = cloudpickle.dumps(travelling.Actor)
        there = "import pickle, sys; print(pickle.load(sys.stdin.buffer)().work(4))"
        command = [sys.executable, "-c", there]
        run = subprocess.run(command, input=sent, capture_output=True, cwd="/", check=True)
        print(run.stdout.decode().strip(), travelling.Actor().work(4))
    """
    source = "class Actor:\n    def work(self, n):\n        kept = n * 2\n        return kept\n"
    (tmp_path / "travelling.py").write_text(source)
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    command = [sys.executable, str(tmp_path / "script.py")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.stdout.split(), run.stderr) == (["8", "8"], "")
