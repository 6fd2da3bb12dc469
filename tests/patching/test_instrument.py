"""The decorator, and the wrappers of targets without source, record calls and change nothing else."""

import asyncio
import copy
import functools
import inspect
import pickle

import pytest

from sglang_instrument import TableError, TargetError, instrument
from sglang_instrument.patching.decorating.wrappers import wrap_target
from sglang_instrument.patching.probes.probe import make_probe
from sglang_instrument.patching.tables.reading import parse_table
from sglang_instrument.recording.measure import spans
from sglang_instrument.recording.measure.context import CURRENT
from sglang_instrument.recording.safety import notices


@pytest.fixture
def records():
    """Collect finished spans; check that no error was swallowed."""
    before, buffer = spans.current_buffer(), []
    notices.forget()
    spans.use_buffer(buffer, int)
    yield buffer
    spans.use_buffer(before, int)
    assert notices.noticed() == []


def brief(records):
    return [(span.event, span.extra, span.error) for span in records]


@instrument
def plain(a, /, b, *rest, c=3, **others):
    """Add."""
    return a + b + c + sum(rest)


@instrument("score", phase="reward", fields={"n": "size(reply)", "score": "result"})
def scored(reply, truth="yes"):
    return float(truth in reply)


@instrument(fields={"n": "size(ids)", "tokens": "total(result)"}, bind={"request_id": "name", "turn": "turn"})
async def awaited(name, ids, turn=0):
    inner()
    await asyncio.sleep(0)
    ids.clear()
    return [1, 2]


@instrument
def inner():
    pass


@instrument(fields={"last": "item", "n": "n"})
def generated(n):
    total = 0
    for i in range(n):
        try:
            total += (yield i) or 0
        except KeyError:
            yield "caught"
    return total


@instrument(fields={"last": "item"})
async def streamed(n):
    try:
        for i in range(n):
            got = yield i
            if got:
                yield got
    except KeyError:
        yield "caught"


class Methods:
    @instrument
    def method(self):
        return self

    @instrument
    @staticmethod
    def static_below(x):
        return x

    @staticmethod
    @instrument
    def static_above(x):
        return x

    @instrument(fields={"name": "cls.__name__"})
    @classmethod
    def class_below(cls):
        return cls

    @classmethod
    @instrument("above")
    def class_above(cls):
        return cls


def test_a_call_is_recorded_under_the_functions_name(records):
    assert plain(1, 2, 10, c=4, d=5) == 17
    [span] = records
    assert (span.event, span.extra, span.phase) == ("plain", None, None)


def test_fields_see_arguments_by_name_defaults_included_and_the_result(records):
    assert scored("yes sir") == 1.0
    assert scored(reply="no") == 0.0
    assert brief(records) == [
        ("score", {"n": 7, "score": 1.0}, None),
        ("score", {"n": 2, "score": 0.0}, None),
    ]
    assert records[0].phase == "reward"


def test_a_coroutine_reads_arguments_before_it_changes_them_and_binds_for_what_it_calls(records):
    assert asyncio.run(awaited("r", [1, 2, 3], turn=4)) == [1, 2]
    assert brief(records) == [("inner", None, None), ("awaited", {"n": 3, "tokens": 3}, None)]
    assert [(s.context.request_id, s.context.turn) for s in records] == [("r", 4), ("r", 4)]
    assert CURRENT.get().request_id is None


def test_concurrent_coroutines_do_not_share_what_is_bound(records):
    async def both():
        await asyncio.gather(*[awaited(str(i), [], i) for i in range(5)])

    asyncio.run(both())
    assert {(s.context.request_id, s.context.turn) for s in records} == {(str(i), i) for i in range(5)}


def test_a_generator_keeps_send_throw_close_and_its_return_value(records):
    generator = generated(3)
    assert [next(generator), generator.send(5), generator.throw(KeyError), next(generator)] == [
        0,
        1,
        "caught",
        2,
    ]
    with pytest.raises(StopIteration) as stopped:
        generator.send(7)
    assert stopped.value.value == 12
    [span] = records
    assert (span.extra["items"], span.extra["last"], span.extra["n"], span.error) == (4, 2, 3, None)
    assert 0 < span.extra["first_item_sec"] <= span.duration_sec
    early = generated(2)
    next(early)
    early.close()
    assert (records[1].extra["items"], records[1].error) == (1, None)


def test_an_async_generator_keeps_asend_athrow_and_aclose(records):
    async def consume():
        stream = streamed(3)
        assert [await anext(stream), await stream.asend("back"), await anext(stream)] == [0, "back", 1]
        assert await stream.athrow(KeyError) == "caught"
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        early = streamed(3)
        await anext(early)
        await early.aclose()
        assert [item async for item in streamed(2)] == [0, 1]

    asyncio.run(consume())
    assert [(s.extra["items"], s.extra["last"], s.error) for s in records] == [
        (4, "caught", None),
        (1, 0, None),
        (2, 1, None),
    ]


def test_an_async_generator_that_is_dropped_closes_the_one_inside(records):
    closed = []

    @instrument
    async def stream():
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    async def consume():
        async for _ in stream():
            break
        await asyncio.sleep(0.01)

    asyncio.run(consume())
    assert closed == [True]
    assert [span.extra["items"] for span in records] == [1]


def test_methods_of_all_kinds_stay_what_they_are(records):
    methods = Methods()
    assert methods.method() is methods
    assert Methods.static_below(1) == methods.static_above(1) == 1
    assert Methods.class_below() is methods.class_above() is Methods
    assert isinstance(vars(Methods)["static_below"], staticmethod)
    assert isinstance(vars(Methods)["class_below"], classmethod)
    events = ["method", "static_below", "static_above", "class_below", "above"]
    assert [span.event for span in records] == events
    assert records[3].extra == {"name": "Methods"}


def test_exceptions_pass_unchanged_and_are_named(records):
    error = ValueError("x")

    @instrument(fields={"n": "n", "r": "result"})
    def fail(n):
        raise error

    with pytest.raises(ValueError, match="x") as caught:
        fail(2)
    assert caught.value is error
    assert brief(records) == [("fail", {"n": 2}, "ValueError")]


def test_a_cancelled_coroutine_stays_cancelled(records):
    @instrument(fields={"x": "'y'", "r": "result"})
    async def wait():
        await asyncio.sleep(60)

    async def cancel():
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert brief(records) == [("wait", {"x": "y"}, "CancelledError")]


def test_a_call_that_does_not_fit_fails_as_without_the_decorator(records):
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'reply'"):
        scored()
    with pytest.raises(TypeError, match="unexpected keyword argument 'nope'"):
        scored("a", nope=1)


def test_kind_signature_name_and_documentation_stay():
    assert inspect.iscoroutinefunction(awaited)
    assert asyncio.iscoroutinefunction(awaited)
    assert inspect.isgeneratorfunction(generated)
    assert inspect.isasyncgenfunction(streamed)
    assert str(inspect.signature(plain)) == "(a, /, b, *rest, c=3, **others)"
    assert (plain.__name__, plain.__qualname__, plain.__doc__) == ("plain", "plain", "Add.")
    assert plain.__module__ == __name__
    assert str(inspect.signature(Methods.class_below)) == "()"


@pytest.mark.parametrize("function", [plain, scored, awaited, generated, streamed])
def test_decorated_functions_pickle_by_name_and_copy_as_themselves(function):
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.deepcopy(function) is function


def test_without_a_session_a_decorated_function_runs_and_records_nothing():
    assert spans.current_buffer() is spans.OFF
    assert plain(1, 2) == 6
    assert scored("yes") == 1.0
    assert list(generated(2)) == [0, 1]
    assert asyncio.run(awaited("r", [])) == [1, 2]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"fields": {"n": "size(promts)"}},
            "'size\\(promts\\)': no argument 'promts'; the arguments are prompts, limit",
        ),
        ({"bind": {"step": "stepp"}}, "no argument 'stepp'"),
        (
            {"bind": {"stage": "limit"}},
            "only step, worker, validate, request_id, turn, role, agent, parent_request can be bound",
        ),
        ({"fields": {"n": "len(prompts)"}}, "no function 'len'"),
    ],
)
def test_a_wrong_field_is_said_where_it_is_written(options, complaint):
    with pytest.raises(TableError, match=complaint):

        @instrument("score", **options)
        def score(prompts, limit=1):
            pass


@pytest.mark.parametrize("target", [int, 3, Methods, property(len), functools.cached_property(len)])
def test_only_functions_and_methods_are_decorated(target):
    with pytest.raises(TargetError, match="instrument must decorate a function or method"):
        instrument("x")(target)


def region(**keys):
    content = {"trainer": "t", "patch": [{"target": "m:f", "region": [{"event": "call", **keys}]}]}
    return parse_table(f"wrapped {keys}", content).patches[0].regions[0]


def test_a_built_in_target_is_wrapped_as_a_whole(records):
    wrapped = wrap_target(
        sorted, make_probe(region(exit={"n": "size(result)"}, enter={"given": "size(iterable)"}))
    )
    assert wrapped([2, 1], reverse=True) == [2, 1]
    assert brief(records) == [("call", {"given": 2, "n": 2}, None)]
    silent = wrap_target(max, make_probe(region(exit={"first": "iterable[0]", "most": "result"})))
    assert silent([1, 5]) == 5  # max() has no signature: its arguments have no names
    assert records[1].extra == {"most": 5}


def test_static_and_class_methods_are_wrapped_as_such_and_classes_not_at_all(records):
    assert isinstance(wrap_target(staticmethod(len), make_probe(region())), staticmethod)
    with pytest.raises(TargetError, match="is a class"):
        wrap_target(int, make_probe(region()))


def test_a_generator_is_wrapped_only_as_one():
    with pytest.raises(TargetError, match="needs generator = true"):
        wrap_target(inspect.unwrap(generated), make_probe(region()))
    with pytest.raises(TargetError, match="is not a generator"):
        wrap_target(inspect.unwrap(plain), make_probe(region(generator=True)))


def test_items_of_a_wrapped_generator_may_end_it(records):
    probe = make_probe(region(generator=True, ends="item.done", exit={"n": "n"}))

    class Item:
        def __init__(self, done):
            self.done = done

    def stream(n):
        for i in range(n):
            yield Item(i == 1)

    items = wrap_target(stream, probe)(4)
    next(items)
    assert records == []
    next(items)
    [span] = records
    assert (span.extra["items"], span.extra["n"]) == (2, 4)
    list(items)
    assert len(records) == 1
