"""Probes in rewritten functions record the right fields and never change the functions' behaviour."""

import asyncio
import contextvars
import gc
import importlib.util
import pickle
import subprocess
import sys
import textwrap
import weakref
from types import SimpleNamespace

import pytest

from sglang_instrument.errors import TableError
from sglang_instrument.patching.probes import finished_regions
from sglang_instrument.patching.probes.probe import make_probe, probes_for
from sglang_instrument.patching.rewriting.patcher import Patcher
from sglang_instrument.patching.tables import field_functions
from sglang_instrument.patching.tables.reading import parse_table
from sglang_instrument.recording.measure import identity, scopes, spans
from sglang_instrument.recording.measure.context import CURRENT, UNBOUND
from sglang_instrument.recording.safety import notices
from sglang_instrument.recording.watch import span_listeners


@pytest.fixture
def records():
    """Collect finished spans; check that no error was swallowed."""
    before, buffer = spans.current_buffer(), []
    notices.forget()
    spans.use_buffer(buffer, int)
    yield buffer
    spans.use_buffer(before, int)
    assert notices.noticed() == []
    assert CURRENT.get().request_id is None
    assert finished_regions.collecting.get() is None
    assert not spans.OPEN


@pytest.fixture
def program(tmp_path):
    """Write a module and patch regions of it for the test."""
    patchers, modules = [], []

    def make(source, **targets):
        name = f"probed_{len(list(tmp_path.iterdir()))}_{tmp_path.name}"
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(source))
        spec = importlib.util.spec_from_file_location(name, path)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        modules.append(name)
        spec.loader.exec_module(module)
        patches = [{"target": target, "region": regions} for target, regions in targets.items()]
        table = parse_table(str(path), {"trainer": "test", "module": name, "patch": patches})
        regions = [region for patch in table.patches for region in patch.regions]
        patcher = Patcher([table], make_probe=probes_for(regions))
        patchers.append(patcher)
        patcher.install()
        assert [site.state for site in patcher.results()] == ["found"] * len(regions), patcher.results()
        return module

    yield make
    for patcher in patchers:
        assert patcher.uninstall() == []
    for name in modules:
        del sys.modules[name]


def brief(records):
    return [(span.event, span.extra) for span in records]


def test_a_region_without_fields_is_a_plain_span(records, program):
    module = program("def f(x):\n    return x + 1\n", f=[{"event": "call"}])
    assert module.f(1) == 2
    [span] = records
    assert type(span) is spans.Span
    assert (span.event, span.extra, span.error) == ("call", None, None)
    assert span.end > span.start


def test_fields_are_read_at_entry_at_the_end_and_of_the_result(records, program):
    module = program(
        """
        def f(items, limit=2):
            count = 0
            for item in items:
                count += item
                items = items[1:]
            if count > limit:
                return {"count": count}
            return {"count": -1}
        """,
        f=[
            {
                "event": "call",
                "enter": {"given": "size(items)", "limit": "limit"},
                "exit": {"left": "size(items)", "count": 'result["count"]', "last": "item"},
            }
        ],
    )
    assert module.f([1, 2, 3]) == {"count": 6}
    assert module.f([]) == {"count": -1}
    assert brief(records) == [
        ("call", {"given": 3, "limit": 2, "left": 0, "count": 6, "last": 3}),
        ("call", {"given": 0, "limit": 2, "left": 0, "count": -1}),  # `item` never had a value
    ]


def test_a_region_left_by_break_and_continue_reads_its_fields_as_they_are_there(records, program):
    module = program(
        """
        def f(numbers):
            for number in numbers:
                doubled = number * 2
                if number == 1:
                    continue
                if number == 2:
                    break
        """,
        f=[{"event": "round", "block": "doubled", "exit": {"doubled": "doubled"}}],
    )
    module.f([0, 1, 2, 3])
    assert brief(records) == [("round", {"doubled": n}) for n in (0, 2, 4)]


def test_a_break_of_a_loop_within_the_region_does_not_leave_it(records, program):
    module = program(
        """
        def f(numbers):
            while numbers:
                first = numbers.pop(0)
                for last in numbers:
                    if last > 1:
                        break
                    continue
                else:
                    if first == 7:
                        break
                    continue
                first = last
        """,
        f=[{"event": "round", "block": "pop", "exit": {"first": "first", "last": "last"}}],
    )
    module.f([0, 1, 2, 5, 7])
    assert brief(records) == [
        ("round", {"first": 2, "last": 2}),
        ("round", {"first": 2, "last": 2}),
        ("round", {"first": 5, "last": 5}),
        ("round", {"first": 7, "last": 7}),
        ("round", {"first": 7, "last": 7}),
    ]


def test_after_an_exception_only_what_happened_inside_is_read(records, program):
    module = program(
        """
        def f(value):
            number = 1
            part()
            return number / value

        def part():
            pass
        """,
        f=[{"event": "call", "exit": {"number": "number", "parts": "size(inside.part)", "is": "'call'"}}],
        part=[{"event": "part"}],
    )
    with pytest.raises(ZeroDivisionError):
        module.f(0)
    part, call = records
    assert (call.event, call.extra, call.error) == ("call", {"parts": 1, "is": "call"}, "ZeroDivisionError")
    assert part.error is None


def test_inside_sees_other_functions_and_tasks_and_no_other_request(records, program):
    module = program(
        """
        import asyncio

        async def request(name, turns):
            for turn in range(turns):
                await engine(turn)
            await asyncio.gather(tool(), tool())
            return name

        async def engine(turn):
            tokens = turn + 1
            await asyncio.sleep(0)

        async def tool():
            await asyncio.sleep(0)
        """,
        request=[
            {
                "event": "request",
                "bind": {"request_id": "name"},
                "exit": {
                    "tokens": "total(inside.engine[*].tokens)",
                    "timings": "inside.engine",
                    "tools": "size(inside.tool)",
                    "engine_pct": "percent(inside.engine[*].duration_sec)",
                    "name": "result",
                },
            }
        ],
        engine=[{"event": "engine", "bind": {"turn": "turn"}, "exit": {"tokens": "tokens"}}],
        tool=[{"event": "tool"}],
    )

    async def both():
        return await asyncio.gather(module.request("a", 1), module.request("b", 3))

    assert asyncio.run(both()) == ["a", "b"]
    requests = {span.extra["name"]: span for span in records if span.event == "request"}
    for name, turns in (("a", 1), ("b", 3)):
        extra = requests[name].extra
        assert requests[name].context.request_id == name
        assert (extra["tokens"], extra["tools"]) == (turns * (turns + 1) // 2, 2)
        assert [timing["turn"] for timing in extra["timings"]] == list(range(turns))
        assert 0 < extra["engine_pct"] <= 100
    assert {(s.context.request_id, s.context.turn) for s in records if s.event == "engine"} == {
        ("a", 0),
        *[("b", turn) for turn in range(3)],
    }
    assert {s.context.request_id for s in records if s.event == "tool"} == {"a", "b"}


def test_bind_holds_for_the_region_and_ends_with_it(records, program):
    module = program(
        """
        def f(meta):
            first()
            second()

        def first(): pass
        def second(): pass
        """,
        f=[
            {
                "event": "bound",
                "at": "first",
                "bind": {"step": 'meta["step"]', "validate": 'meta["validate"]', "turn": "meta['nothing']"},
            }
        ],
        first=[{"event": "first"}],
        second=[{"event": "second"}],
    )
    module.f({"step": 7, "validate": True})
    steps = {span.event: (span.context.step, span.context.validate, span.context.turn) for span in records}
    assert steps == {"first": (7, True, None), "bound": (7, True, None), "second": (None, False, None)}


def test_a_root_inherits_nothing(records, program):
    module = program(
        """
        def outer(name): handle()
        def handle(): leaf()
        def leaf(): pass
        """,
        outer=[{"event": "outer", "bind": {"request_id": "name"}, "exit": {"leaves": "size(inside.leaf)"}}],
        handle=[{"event": "handle", "root": True}],
        leaf=[{"event": "leaf"}],
    )
    module.outer("r")
    leaf, handle, outer = records
    assert leaf.context.request_id is handle.context.request_id is None
    assert (outer.context.request_id, outer.extra) == ("r", {"leaves": 0})


def test_when_decides_whether_a_run_is_recorded(records, program):
    module = program(
        """
        def f(queue):
            return len(queue)
        """,
        f=[{"event": "busy", "when": "queue", "exit": {"n": "result"}}],
    )
    assert [module.f([]), module.f([1]), module.f("")] == [0, 1, 0]
    assert brief(records) == [("busy", {"n": 1})]


def test_instant_events_have_no_duration(records, program):
    module = program(
        """
        def f(x):
            y = x + 1
            return y
        """,
        f=[
            {"event": "begun", "at": "y", "emit": "enter", "enter": {"x": "x"}},
            {"event": "done", "at": "y", "emit": "exit", "exit": {"y": "y"}, "phase": "step"},
        ],
    )
    module.f(1)
    assert [(s.event, s.extra, s.end) for s in records] == [("begun", {"x": 1}, 0), ("done", {"y": 2}, 0)]
    with pytest.raises(TypeError):
        module.f(None)
    assert [s.event for s in records[2:]] == ["begun"]  # an event that was not reached is not recorded


def test_listeners_hear_the_instant_events_of_a_patch(records, program):
    heard = []
    module = program(
        "def f(x):\n    y = x + 1\n    return y\n",
        f=[{"event": "begun", "at": "y", "emit": "enter"}, {"event": "done", "at": "y", "emit": "exit"}],
    )
    span_listeners.listen(heard.append)
    try:
        module.f(1)
    finally:
        span_listeners.ignore(heard.append)
    assert [span for span in records if span in heard] == records
    assert [span.event for span in records] == ["begun", "done"]


def test_cancelled_coroutines_say_so_and_stay_cancelled(records, program):
    module = program(
        """
        import asyncio

        async def f(name):
            await asyncio.sleep(60)
        """,
        f=[{"event": "call", "bind": {"request_id": "name"}, "exit": {"x": "name"}}],
    )

    async def cancel():
        task = asyncio.create_task(module.f("a"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    [span] = records
    assert (span.error, span.extra, span.context.request_id) == ("CancelledError", None, "a")


def test_a_coroutine_closed_in_another_context_leaves_no_binding_behind(records, program):
    module = program(
        """
        class Pause:
            def __await__(self):
                yield

        async def f():
            await Pause()
        """,
        f=[{"event": "call", "bind": {"turn": "3"}, "exit": {"n": "size(inside.nothing)"}}],
    )
    coroutine = module.f()
    contextvars.copy_context().run(coroutine.send, None)
    coroutine.close()
    assert [span.error for span in records] == ["GeneratorExit"]
    assert CURRENT.get() is UNBOUND


STREAM = """
async def stream(n):
    for i in range(n):
        yield {"index": i, "finish": i == 2}

def numbers(n):
    for i in range(n):
        got = yield i
    return "end"
"""


def test_a_generator_is_recorded_once_with_its_items_and_the_first(records, program):
    module = program(STREAM, numbers=[{"event": "numbers", "generator": True, "exit": {"last": "item"}}])
    generator = module.numbers(3)
    assert [next(generator), generator.send("x"), next(generator)] == [0, 1, 2]
    with pytest.raises(StopIteration, match="end"):
        next(generator)
    [span] = records
    assert (span.extra["items"], span.extra["last"]) == (3, 2)
    assert 0 < span.extra["first_item_sec"] <= span.duration_sec


def test_a_generator_ends_at_the_item_its_table_calls_the_last(records, program):
    region = {
        "event": "stream",
        "generator": True,
        "ends": 'item["finish"]',
        "exit": {"index": 'item["index"]', "n": "n"},
    }
    module = program(STREAM, stream=[region])

    async def consume():
        stream = module.stream(5)
        async for _ in stream:
            if records:
                break
        assert [span.extra["index"] for span in records] == [2]
        await stream.aclose()

    asyncio.run(consume())
    [span] = records
    assert (span.extra["items"], span.extra["n"], span.error) == (3, 5, None)


def test_a_generator_keeps_no_reference_to_values_after_its_last_item(records, program):
    source = """
    class Answer: pass

    def answers(made):
        yield 1
        answer = Answer()
        made(answer)
    """
    region = {"event": "answers", "generator": True, "ends": "item", "exit": {"size": "answer.size"}}
    module, made = program(source, answers=[region]), []
    assert list(module.answers(lambda answer: made.append(weakref.ref(answer)))) == [1]
    assert len(records) == 1
    assert made[0]() is None


@pytest.mark.parametrize(("local", "last"), [("n", 5), ("i", 2), ("gone", None)])
def test_the_last_item_finds_locals_wherever_they_are(records, program, local, last):
    exits = {"local": local, "index": 'item["index"]'}
    region = {"event": "stream", "generator": True, "ends": 'item["finish"]', "exit": exits}
    module = program(STREAM, stream=[region])

    async def consume():
        async for _ in module.stream(5):
            pass

    asyncio.run(consume())
    [span] = records
    assert (span.extra["index"], span.extra.get("local")) == (2, last)


def test_a_generator_dropped_early_and_one_never_begun(records, program):
    module = program(STREAM, numbers=[{"event": "numbers", "generator": True, "exit": {"i": "i"}}])
    generator = module.numbers(9)
    next(generator)
    contextvars.copy_context().run(generator.close)
    module.numbers(9).close()
    [span] = records
    assert (span.extra["items"], span.extra["i"], span.error) == (1, 0, None)


def test_an_async_generator_that_its_consumer_forgets_is_recorded_when_it_is_closed(records, program):
    module = program(STREAM, stream=[{"event": "stream", "generator": True, "exit": {"i": "i"}}])

    async def consume():
        async for _ in module.stream(5):
            break
        gc.collect()
        await asyncio.sleep(0.01)

    asyncio.run(consume())
    [span] = records
    assert (span.extra["items"], span.extra["i"], span.error) == (1, 0, None)


def test_a_generator_that_raises_names_the_error(records, program):
    module = program(STREAM, numbers=[{"event": "numbers", "generator": True}])
    generator = module.numbers(3)
    next(generator)
    with pytest.raises(KeyError):
        generator.throw(KeyError("x"))
    assert [(span.error, span.extra["items"]) for span in records] == [("KeyError", 1)]


def test_a_captured_argument_is_recorded_and_passed_on(records, program):
    module = program(
        """
        def f():
            return call(name=make())

        def call(name): return name
        def make(): return "rid-1"
        """,
        f=[{"event": "call", "at": "call", "capture": {"rid": "call(name)"}}],
    )
    assert module.f() == "rid-1"
    assert brief(records) == [("call", {"rid": "rid-1"})]


def test_open_regions_of_watched_phases_are_known(records, program):
    module = program("def f(see):\n    see()\n", f=[{"event": "turn_end", "exit": {"n": "3"}}])
    seen = []
    module.f(lambda: seen.extend(span.event for span in spans.OPEN.values()))
    assert seen == ["turn_end"]
    assert brief(records) == [("turn_end", {"n": 3})]


def test_a_custom_phase_is_recorded(records, program):
    region = {"event": "judge", "phase": "other", "exit": {"n": "result"}}
    module = program(
        "def f():\n    return 2\n\ndef g():\n    pass\n", f=[region], g=[{"event": "g", "phase": "tool"}]
    )
    module.f()
    module.g()
    assert [(span.event, span.phase) for span in records] == [("judge", "other"), ("g", "tool")]


def test_a_failing_probe_is_counted_reported_once_and_invisible_to_training(program, caplog):
    class Broken:
        def append(self, span):
            raise OSError("full")

    module = program(
        "def f(x):\n    return x\n",
        f=[{"event": "call", "bind": {"turn": "x"}, "exit": {"x": "result"}}],
    )
    before = spans.current_buffer()
    notices.forget()
    spans.use_buffer(Broken(), int)
    try:
        assert [module.f(1), module.f(2)] == [1, 2]
    finally:
        spans.use_buffer(before, int)
    [notice] = notices.noticed()
    assert notice["times"] == 2
    assert "the probe of call" in notice["notice"]
    assert len(caplog.records) == 1
    assert CURRENT.get().turn is None
    notices.forget()


def test_records_keep_nothing_of_the_program_alive(records, program):
    module = program(
        """
        class Thing: pass

        def f(things):
            for thing in things:
                if thing:
                    break
            return None
        """,
        f=[{"event": "loop", "at": "things", "exit": {"thing": "thing.name | 1"}}],
    )
    thing = module.Thing()
    gone = weakref.ref(thing)
    module.f([thing])
    del thing
    gc.collect()
    assert len(records) == 1
    assert gone() is None


def test_a_pickled_probe_is_rebuilt_from_its_region_and_works(records):
    table = parse_table(
        "travel",
        {
            "trainer": "test",
            "patch": [
                {"target": "m:f", "region": [{"event": "call", "enter": {"x": "x"}, "exit": {"y": "y"}}]}
            ],
        },
    )
    [region] = table.patches[0].regions
    probe = make_probe(region)
    assert pickle.loads(pickle.dumps(probe)) is probe
    other = make_probe(region, is_read_by_others=True)
    assert other is not probe
    assert pickle.loads(pickle.dumps(other)) is other
    assert (probe.enter_locals, probe.exit_locals) == (("x",), ("y",))
    with pickle.loads(pickle.dumps(probe))(1) as run:
        run.leave(2)
    assert brief(records) == [("call", {"x": 1, "y": 2})]
    assert pickle.loads(pickle.dumps(field_functions.UNBOUND)) is field_functions.UNBOUND


def test_a_rewritten_function_pickled_by_value_records_in_the_other_process(program):
    cloudpickle = pytest.importorskip("cloudpickle")
    module = program(
        "def f(x, y=None):\n    if x:\n        y = x\n    return y\n",
        f=[{"event": "call", "enter": {"x": "x"}, "exit": {"y": "y", "r": "result"}}],
    )
    cloudpickle.register_pickle_by_value(module)
    try:
        sent = cloudpickle.dumps(module.f)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    receiver = """
        import pickle, sys
        from sglang_instrument.recording.measure import spans
        function = pickle.load(sys.stdin.buffer)
        function(1)
        records = []
        spans.use_buffer(records)
        function(2)
        print([(span.event, span.extra) for span in records])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(receiver)], input=sent, capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == "[('call', {'x': 2, 'y': 2, 'r': 2})]"


@pytest.mark.parametrize(
    ("region", "complaint"),
    [
        (
            {"exit": {"n": "len(x)"}},
            r"patch 1: region 1 \(call\): exit: expression 'len\(x\)': no function 'len'",
        ),
        ({"enter": {"n": "x["}}, r"enter: expression 'x\[': expected"),
        ({"when": "x +"}, "when: expression"),
        ({"generator": True, "bind": {"turn": "x"}}, "a generator region cannot bind"),
        ({"generator": True, "exit": {"n": "inside.x"}}, "or read `inside`"),
    ],
)
def test_a_bad_region_is_refused_by_its_place(region, complaint):
    content = {"trainer": "t", "patch": [{"target": "m:f", "region": [{"event": "call", **region}]}]}
    table = parse_table("bad", content)
    with pytest.raises(TableError, match=complaint):
        make_probe(table.patches[0].regions[0])
    probes_for(table.patches[0].regions)  # one bad region does not disable the others


STEPS = """
def f(batch):
    return g(batch)
def g(batch):
    return batch
"""
COUNTED = {"event": "step", "bind": {"step": "batch.step", "validate": "batch.validate"}, "count_steps": True}


def test_steps_are_counted_where_the_trainer_does_not_name_them(records, program):
    module = program(STEPS, f=[COUNTED])
    for step, validate in [(None, True), (None, False), (None, False), (None, True), (None, False)]:
        module.f(SimpleNamespace(step=step, validate=validate))
    module.f(SimpleNamespace(step=67, validate=False))
    module.f(SimpleNamespace(step=None, validate=True))
    bound = [(span.context.step, span.context.validate) for span in records]
    assert bound == [(0, True), (1, False), (2, False), (2, True), (3, False), (67, False), (67, True)]


def test_what_follows_a_leader_records_nothing_and_binds_nothing(records, tmp_path, monkeypatch):
    (tmp_path / "ranks.py").write_text("def f(rank):\n    return g(rank)\ndef g(rank):\n    return rank\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    region = {"event": "step", "bind": {"worker": "rank"}}
    patch = {"target": "f", "leader": "not(rank)", "region": [region, {"event": "part", "at": "g"}]}
    table = parse_table("ranks", {"trainer": "test", "module": "ranks", "patch": [patch]})
    assert (follow(table), brief(records)) == ([0, 1], [("part", None), ("step", None)])
    records.clear()
    assert (follow(table.for_all_ranks()), len(records)) == ([0, 1], 4)


def follow(table):
    import ranks

    patcher = Patcher([table], make_probe=make_probe)
    patcher.install()
    try:
        return [ranks.f(0), ranks.f(1)]
    finally:
        patcher.uninstall()


def test_a_region_says_what_its_process_is_from_its_first_run_on(program, records):
    module = program(
        """
        def launch(rank):
            return work()

        def work():
            return 1
        """,
        launch=[{"event": "engine_start", "process": {"role": "'server'", "worker": "rank"}}],
        work=[{"event": "work", "bind": {"turn": "0"}}],
    )
    assert module.launch(rank=7) == 1
    assert module.work() == 1
    scope = scopes.scope_for(None, None, None, False)
    assert (scope.role, scope.worker, scope.step) == ("server", 7, None)


def test_a_region_is_asked_for_its_process_until_it_has_said_all(program, records):
    module = program(
        "def launch(server): pass",
        launch=[{"event": "engine_start", "process": {"role": "'server'", "worker": "server.rank"}}],
    )

    class Server:
        asked = 0

        @property
        def rank(self):
            self.asked += 1
            if self.asked == 1:
                raise AttributeError("no rank yet")
            return 7

    server = Server()
    for _ in range(4):
        module.launch(server)
    assert (server.asked, identity.process_worker()) == (2, 7)
    identity.begin_child()
    module.launch(server)
    assert server.asked == 3


@pytest.mark.parametrize("trained", [True, False])
def test_a_region_on_a_condition_that_only_reads_has_the_fields_of_both_ends(program, records, trained):
    module = program(
        "def train(batch): loss = sum(batch)",
        train=[
            {"event": "train", "when": "batch", "enter": {"size": "size(batch)"}, "exit": {"loss": "loss"}}
        ],
    )
    module.train([3] if trained else [])
    assert [record.extra for record in records] == [{"size": 1, "loss": 3}] * trained


def test_the_role_that_install_was_given_wins_over_the_tables(program, records):
    module = program(
        "def launch(): pass", launch=[{"event": "engine_start", "process": {"role": "'server'"}}]
    )
    identity.use_role("trainer")
    module.launch()
    assert scopes.scope_for(None, None, 3, False).role == "trainer"


def test_a_request_that_its_trainer_names_too_late_is_named_here(program, records):
    module = program(
        """
        def request():
            return turn()

        def turn():
            return 1
        """,
        request=[{"event": "async_rollout_request_complete", "new_request": True}],
        turn=[{"event": "turn_end", "bind": {"turn": "0"}}],
    )
    assert module.request() == module.request() == 1
    ids = [record.context.request_id for record in records]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    assert all(isinstance(request_id, str) and request_id for request_id in ids)
