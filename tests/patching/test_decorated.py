"""A decorated function stays as it was; `install()` rewrites a copy of it, `uninstall()` restores it."""

import asyncio
import copy
import functools
import gc
import inspect
import logging
import pickle
import subprocess
import sys
import textwrap
import threading
import traceback
import types
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import typeguard
from planted import plant, table

from sglang_instrument import instrument
from sglang_instrument.patching.code_constants import original_of
from sglang_instrument.patching.decorating import rebuilt, rewriting
from sglang_instrument.patching.decorating.notes import NOTES
from sglang_instrument.patching.decorating.rewriting import requests_of
from sglang_instrument.patching.probes.probe import probes_for
from sglang_instrument.patching.rewriting.patcher import Patcher
from sglang_instrument.recording.measure import spans
from sglang_instrument.recording.safety import notices


class Switch:
    """Records while it is on; what was swallowed or not rewritten fails the test."""

    def __init__(self):
        self.records = []
        notices.forget()

    def on(self):
        spans.use_buffer(self.records, int)

    def off(self):
        spans.use_buffer(spans.OFF)

    @property
    def events(self):
        return [span.event for span in self.records]


@pytest.fixture
def switch():
    made = Switch()
    yield made
    made.off()
    assert notices.noticed() == []


def both_ways(switch, act):
    """Return what a program gives without and with recording; the two must be equal."""
    without = act()
    switch.on()
    try:
        assert act() == without
    finally:
        switch.off()
    return without


def test_the_copy_alone_is_rewritten_and_gets_its_code_back(switch):
    def plain(x):
        return x

    before, code = dict(vars(plain)), plain.__code__
    decorated = instrument(plain)
    assert decorated is not plain
    assert decorated.__code__ is code
    switch.on()
    assert decorated(3) == plain(3) == 3
    assert (plain.__code__, vars(plain)) == (code, before)
    assert original_of(decorated.__code__) is code is not decorated.__code__
    switch.off()
    assert decorated.__code__ is code
    assert switch.events == ["plain"]


def test_a_function_that_is_decorated_while_recording_is_rewritten_at_once(switch):
    switch.on()

    @instrument("late")
    def late():
        return 1

    assert late() == 1
    assert switch.events == ["late"]


def test_decorated_functions_die_when_the_program_drops_them(switch):
    def make():
        @instrument(fields={"n": "n"})
        def inner(n):
            return n

        return inner

    switch.on()
    gc.disable()
    try:
        function = make()
        function(1)
        code, noted = weakref.ref(function.__code__), len(NOTES)
        function = weakref.ref(function)
    finally:
        gc.enable()
    assert function() is None
    assert len(NOTES) == noted - 1
    assert code() is make_code(make)  # the code waits for the next function of the same definition


def make_code(make):
    return make().__code__


def test_functions_inside_others_are_rewritten_once(switch, monkeypatch):
    asked = []
    rewrite = rewriting._rewrite
    monkeypatch.setattr(rewriting, "_rewrite", lambda *wanted: asked.append(1) or rewrite(*wanted))

    def serve(request):
        @instrument(fields={"request": "request"})
        def handle(request):
            return request

        return handle(request)

    switch.on()
    assert [serve(number) for number in range(50)] == [*range(50)]
    assert len(asked) == 1
    assert [span.extra for span in switch.records] == [{"request": number} for number in range(50)]


def test_stacked_decorators_record_the_outer_one_around_the_inner_one(switch):
    @instrument("outer")
    @instrument("inner")
    def both():
        return 1

    switch.on()
    assert both() == 1
    assert switch.events == ["inner", "outer"]


def test_what_inspect_and_callers_read_of_a_function_is_its_own(switch):
    def function(a, /, b=1, *rest, c=2, **others) -> int:
        """Say."""
        return a

    decorated = instrument("event", fields={"a": "a", "r": "result"})(function)
    names = ("__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__")
    names += ("__annotations__", "__closure__", "__globals__", "__type_params__")

    def look():
        return (
            [getattr(decorated, name, None) for name in names],
            [getattr(decorated.__code__, name) for name in ("co_argcount", "co_flags", "co_firstlineno")],
            inspect.getfullargspec(decorated),
            inspect.signature(decorated),
            inspect.getsource(decorated),
        )

    seen = both_ways(switch, look)
    decorated = function
    assert look() == seen


def test_warnings_and_logs_name_the_caller_and_recursion_is_as_deep(switch, caplog):
    @instrument
    def warned():
        warnings.warn("careful", stacklevel=2)
        logging.getLogger("program").warning("careful", stacklevel=2)

    @instrument
    def deep(n):
        return n and deep(n - 1)

    def act():
        caplog.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warned()
        return caught[0].filename, caught[0].lineno, caplog.records[0].lineno, deep(700)

    assert both_ways(switch, act)[0] == __file__


def test_an_async_generator_that_is_left_open_is_closed_once(switch):
    @instrument
    async def items():
        try:
            for number in range(5):
                yield number
        finally:
            await asyncio.sleep(0.01)

    def act():
        said = []

        async def main():
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context))
            main.open_items = items()
            async for _ in main.open_items:
                break

        asyncio.run(main())
        return said

    assert both_ways(switch, act) == []


def answering():
    try:
        yield 1
    except GeneratorExit:
        yield "answer"


def test_a_generator_may_answer_a_generator_exit_that_is_thrown(switch):
    decorated = instrument(answering)

    def act():
        generator = decorated()
        return next(generator), generator.throw(GeneratorExit), list(generator)

    assert both_ways(switch, act) == (1, "answer", [])


def test_a_generator_that_delegates_is_counted_and_stays_as_deep(switch):
    def inner():
        warnings.warn("careful", stacklevel=2)
        received = yield 1
        yield received
        return "end"

    @instrument(fields={"last": "item"})
    def numbers(depth):
        if depth:
            return (yield from numbers(depth - 1))
        return (yield from inner())

    def act():
        generator = numbers(200)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            seen = [next(generator), generator.send(7)]
        with pytest.raises(StopIteration) as stopped:
            next(generator)
        return seen, stopped.value.value, caught[0].filename

    assert both_ways(switch, act) == ([1, 7], "end", __file__)
    assert {(span.extra["items"], span.extra["last"]) for span in switch.records} == {(1, 1)}


def test_an_exception_passes_through_a_delegating_generator_with_the_same_traceback(switch):
    def inner():
        try:
            yield 1
        except KeyError as error:
            raise ValueError("wrong") from error

    @instrument
    def numbers():
        yield from inner()

    def act():
        generator = numbers()
        next(generator)
        with pytest.raises(ValueError, match="wrong") as caught:
            generator.throw(KeyError("thrown"))
        return [(row.name, row.lineno) for row in traceback.extract_tb(caught.value.__traceback__)]

    assert [name for name, _ in both_ways(switch, act)] == ["act", "numbers", "inner"]


@pytest.mark.parametrize("above", [True, False])
@pytest.mark.parametrize("early", [True, False])
def test_a_coroutine_of_types_coroutine_stays_one(switch, above, early):
    def waits():
        yield
        return 3

    if early:
        switch.on()
    decorated = instrument(types.coroutine(waits)) if above else types.coroutine(instrument(waits))
    switch.off()

    def act():
        async def main():
            return await decorated()

        running = main()
        running.send(None)
        with pytest.raises(StopIteration) as stopped:
            running.send(None)
        return stopped.value.value, decorated.__code__.co_flags

    value, flags = both_ways(switch, act)
    assert value == 3
    assert flags & inspect.CO_ITERABLE_COROUTINE
    assert switch.events == ["waits"]


def test_arguments_and_results_live_no_longer_than_without(switch):
    class Big:
        pass

    @instrument(fields={"big": "big", "r": "result"})
    def drops(big):
        alive = weakref.ref(big)
        del big
        return alive() is not None

    def act():
        return drops(Big())

    is_held_by_call = sys.version_info < (3, 11)  # until it returns
    assert both_ways(switch, act) is is_held_by_call
    assert switch.records[0].extra["r"] is is_held_by_call


def test_a_function_that_shows_its_locals_hides_none_and_is_measured(switch):
    @instrument(fields={"r": "size(result)"})
    def shows(a):
        b = 2
        return locals()

    def act():
        return shows(1)

    assert both_ways(switch, act) == {"a": 1, "b": 2}
    assert [span.extra for span in switch.records] == [{"r": 2}]


def test_fields_see_arguments_through_a_decorator_below(switch):
    def below(function):
        @functools.wraps(function)
        def called(*args, **kwargs):
            return function(*args, **kwargs)

        return called

    @instrument(fields={"n": "size(prompts)"})
    @below
    def generate(prompts, limit=1):
        return limit

    switch.on()
    assert generate([1, 2], limit=4) == 4
    assert switch.records[0].extra == {"n": 2}


SOURCE = """
from sglang_instrument import instrument

def plain(n):
    return n + 1

@instrument("decorated", fields={"r": "result"})
def both(n):
    return n + 1
"""


@pytest.mark.parametrize("order", ["import first", "install first"])
def test_tables_and_decorators_meet_in_one_function(tmp_path, monkeypatch, switch, order):
    monkeypatch.syspath_prepend(str(tmp_path))
    module = plant(tmp_path, SOURCE) if order == "import first" else None
    planted = table(*({"target": name, "region": [{"event": "table"}]} for name in ("plain", "both")))
    regions = [region for patch in planted.patches for region in patch.regions]
    patcher = Patcher([planted], make_probe=probes_for(regions), decorated=requests_of)
    rewriting.ask_for_tables(patcher.requests_of)
    switch.on()
    patcher.install()
    try:
        module = module or plant(tmp_path, SOURCE)
        again = instrument("again")(module.plain)
        assert [site.state for site in patcher.results()] == ["found", "found"]
        assert [module.both(1), module.plain(1), again(1)] == [2, 2, 2]
        assert switch.events == ["table", "decorated", "table", "table", "again"]
        assert original_of(module.both.__code__) is not module.both.__code__
    finally:
        rewriting.ask_for_tables(None)
        assert patcher.uninstall() == []
        switch.off()
    functions = (module.both, module.plain, again)
    assert all(original_of(function.__code__) is function.__code__ for function in functions)
    switch.on()
    assert module.both(1) == 2
    assert switch.events[5:] == ["decorated"]


def test_a_function_whose_file_has_changed_runs_and_is_named(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    switch = Switch()
    module = plant(tmp_path, SOURCE)
    (tmp_path / "planted_module.py").write_text("\n" + SOURCE)
    switch.on()
    assert module.both(1) == 2
    switch.off()
    [said] = notices.noticed()
    assert "@instrument of planted_module:both: changed" in said["notice"]
    notices.forget()


@instrument("cached")
@functools.lru_cache
def cached(n):
    return n


def test_what_has_no_source_is_wrapped_and_still_is_what_it_was(switch):
    shorter = instrument("shorter", fields={"r": "size(result)"})(functools.partial(sorted, reverse=True))
    switch.on()
    assert (cached(1), cached(1), cached.cache_info().hits) == (1, 1, 1)
    assert shorter([1, 2]) == [2, 1]
    assert (shorter.func, shorter.keywords) == (sorted, {"reverse": True})
    assert isinstance(shorter, functools.partial)
    assert switch.events == ["cached", "cached", "shorter"]
    assert switch.records[2].extra == {"r": 2}


def test_a_wrapper_binds_as_what_it_wraps(switch):
    class Words(str):
        shout = instrument("shout", fields={"n": "size(self)"})(str.upper)
        double = instrument("double")(lambda self: self + self)

    switch.on()
    assert (Words("a").shout(), Words.shout("b"), Words("c").double()) == ("A", "B", "cc")
    assert [(span.event, span.extra) for span in switch.records] == [
        ("shout", {"n": 1}),
        ("shout", {"n": 1}),
        ("double", None),
    ]


def test_descriptors_bind_and_are_measured(switch):
    class Calls:
        def add(self, n, m):
            return n + m

        async def wait(self, n):
            await asyncio.sleep(0)
            return n

        more = instrument("more", fields={"r": "result"})(functools.partialmethod(add, 1))
        late = instrument("late", fields={"r": "result"})(functools.partialmethod(wait, 2))

    switch.on()
    assert (Calls().more(2), asyncio.run(Calls().late())) == (3, 2)
    assert [(span.event, span.extra) for span in switch.records] == [("more", {"r": 3}), ("late", {"r": 2})]


def test_threads_decorate_while_recording_is_switched(switch):
    def decorate():
        while not stop.is_set():
            assert instrument("inner")(lambda_free)(1) == 1

    def lambda_free(n):
        return n

    stop, threads = threading.Event(), []
    with ThreadPoolExecutor(3) as pool:
        threads = [pool.submit(decorate) for _ in range(3)]
        for _ in range(200):
            switch.on()
            switch.off()
        stop.set()
    for thread in threads:
        thread.result()
    decorated = instrument("last")(lambda_free)
    assert decorated.__code__ is lambda_free.__code__


def test_wrappers_pickle_by_name_or_with_what_they_wrap(switch):
    assert pickle.loads(pickle.dumps(cached)) is cached
    assert copy.copy(cached) is copy.deepcopy(cached) is cached
    arrived = pickle.loads(pickle.dumps(instrument("most")(max)))
    switch.on()
    assert arrived([1, 3]) == 3
    assert switch.events == ["most"]


def test_a_wrapper_arrives_bare_where_this_package_is_not(tmp_path):
    sent = pickle.dumps(instrument("most")(max))
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer) is max)"
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, input=sent, capture_output=True, cwd=tmp_path, env={}, check=True)
    assert done.stdout == b"True\n"


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("place", ["half", "Numbers.half"])
def test_a_type_checker_above_goes_on_checking_and_a_notice_names_the_function(
    tmp_path, monkeypatch, switch, installed, place
):
    module = typechecked_module(tmp_path, monkeypatch, switch, "typechecked", "instrument", installed)
    half = functools.reduce(getattr, place.split("."), module)
    notice = f"@instrument of planted_module:{place}: a decorator above it made another function"
    assert half(4) == 2
    with pytest.raises(typeguard.TypeCheckError):
        half("4")
    switch.off()  # names those of modules that were imported while recording
    said = [noticed["notice"] for noticed in notices.noticed()]
    assert [text.startswith(notice) for text in said].count(True) == 1
    assert len(said) == 2
    assert switch.events == []
    notices.forget()


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("place", ["half", "Numbers.half"])
def test_a_type_checker_below_checks_and_the_calls_are_recorded(
    tmp_path, monkeypatch, switch, installed, place
):
    module = typechecked_module(tmp_path, monkeypatch, switch, "instrument", "typechecked", installed)
    half = functools.reduce(getattr, place.split("."), module)
    assert half(4) == 2
    with pytest.raises(typeguard.TypeCheckError):
        half("4")
    assert switch.events == ["half", "half"]


def typechecked_module(tmp_path, monkeypatch, switch, above, below, installed):
    monkeypatch.syspath_prepend(str(tmp_path))
    decorated = f"@{above}\n@{below}\ndef half(n: int) -> int:\n    return n // 2\n"
    static = textwrap.indent(f"@staticmethod\n{decorated}", "    ")
    source = "from typeguard import typechecked\nfrom sglang_instrument import instrument\n"
    if installed:
        switch.on()
    module = plant(tmp_path, f"{source}{decorated}class Numbers:\n{static}")
    switch.on()
    return module


def test_a_function_that_was_replaced_otherwise_is_no_rebuilt_one(tmp_path, monkeypatch, switch):
    monkeypatch.syspath_prepend(str(tmp_path))
    module = plant(
        tmp_path,
        """
from functools import wraps
from sglang_instrument import instrument
def through(function):
    @wraps(function)
    def half(n):
        return function(n)
    return half
@instrument
@instrument("outer")
@through
def half(n):
    return n // 2
@instrument
def gone(n):
    return n
del gone
@instrument
def again(n):
    return n
def again(n):
    return n + 1
""",
    )
    switch.on()
    assert (module.half(4), module.again(1)) == (2, 2)
    assert switch.events == ["outer", "half"]
    assert type(module.half) is types.FunctionType


def test_functions_that_are_decorated_at_each_call_are_not_remembered():
    for _ in range(3000):
        instrument("again")(plant)
    assert len(rebuilt._dropped) <= rebuilt._MOST_DROPPED
    assert not any(known.qualname == "plant" for known in rebuilt._existing)


DILLED = """
import multiprocess
from sglang_instrument import instrument

@instrument
def work(n):
    return n + 1

if __name__ == "__main__":
    with multiprocess.Pool(1) as pool:
        print(pool.map(work, [1, 2]), pool.map(instrument("twice")(lambda n: n * 2), [1, 2]))
"""


@pytest.mark.parametrize("switched", ["", "1"])
def test_dill_sends_decorated_functions_to_other_processes(tmp_path, run_script, switched):
    pytest.importorskip("multiprocess")
    done = run_script(DILLED, file=tmp_path / "dilled.py", SGLANG_INSTRUMENT=switched)
    assert done.stdout == "[2, 3] [2, 4]\n"


COMPILED = """
import torch
from sglang_instrument import instrument, install

@instrument(fields={"x": "x", "r": "result"})
def double(x):
    return x * 2

@instrument
def outer(x):
    return double(x) + 1

install(trainers="none")
for function in (double, outer):
    print(torch.compile(function, fullgraph=True, backend="eager")(torch.ones(2)).tolist())
"""


def test_decorated_functions_compile_as_one_graph(tmp_path, run_script):
    pytest.importorskip("torch")
    done = run_script(COMPILED, file=tmp_path / "compiled.py")
    assert done.stdout == "[2.0, 2.0]\n[3.0, 3.0]\n"
    assert "double: torch.compile compiles it; compiled code records nothing" in done.stderr


def test_wrapt_is_imported_only_for_what_has_no_source(tmp_path, run_script):
    source = """
    import sys
    from sglang_instrument import install, instrument, uninstall

    @instrument(fields={"r": "result"})
    def function(): return 1

    install(trainers="none")
    function()
    print("wrapt" in sys.modules)
    instrument("most")(max)
    print("wrapt" in sys.modules)
    """
    done = run_script(source, file=tmp_path / "program.py")
    assert done.stdout == "False\nTrue\n"
