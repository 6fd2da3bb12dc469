"""A local that another function unbinds costs its field, and never raises into the function."""

import asyncio

import pytest
from test_probe import brief, program, records  # noqa: F401 - fixtures

SOURCE = """
import asyncio


def by_nested_function():
    x = [1]
    def drop():
        nonlocal x
        del x
    drop()
    return 5


def by_parameter(x):
    def drop():
        nonlocal x
        try:
            raise ValueError
        except ValueError as x:
            pass
    drop()
    return 5


def by_nested_class(x):
    def drop():
        class Holder:
            nonlocal x
            del x
    drop()
    return 5


def around(make):
    x = [1]
    def drop():
        nonlocal x
        del x
    def inner():
        nonlocal x
        x = [1, 2]
        drop()
        return 5
    return inner


inner = around(None)


async def by_coroutine(x):
    async def drop():
        nonlocal x
        del x
    await drop()
    return 5


def generates(x):
    def drop():
        nonlocal x
        del x
    drop()
    yield 5


async def opens(x):
    def drop():
        nonlocal x
        del x
    drop()
    return await something(lambda: 1)


async def something(called):
    return 5
"""


def run(function, *arguments):
    result = function(*arguments)
    if asyncio.iscoroutine(result):
        return asyncio.run(result)
    return next(iter(result)) if hasattr(result, "__next__") else result


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("by_nested_function", ()),
        ("by_parameter", ([1],)),
        ("by_nested_class", ([1],)),
        ("inner", ()),
        ("by_coroutine", ([1],)),
    ],
)
def test_a_field_of_a_local_that_another_function_unbinds_is_left_out(records, program, name, arguments):  # noqa: F811
    region = {"event": "call", "exit": {"size": "size(x)"}, "always": {"end": "size(x)"}}
    module = program(SOURCE, **{name: [region]})
    assert run(getattr(module, name), *arguments) == 5
    assert brief(records) == [("call", None)] or brief(records) == [("call", {})]


def test_a_part_of_a_function_in_which_the_local_is_unbound_is_guarded_too(records, program):  # noqa: F811
    region = {"event": "part", "after": "x", "enter": {"before": "size(x)"}, "exit": {"size": "size(x)"}}
    module = program(SOURCE, by_nested_function=[region])
    assert module.by_nested_function() == 5
    assert brief(records) == [("part", {"before": 1})]


def test_a_generators_item_does_not_need_the_local(records, program):  # noqa: F811
    region = {"event": "call", "generator": True, "exit": {"size": "size(x)"}, "ends": "x"}
    module = program(SOURCE, generates=[region])
    assert list(module.generates([1])) == [5]
    assert brief(records)[0][1]["items"] == 1


def test_a_call_that_is_measured_does_not_need_the_local(records, program):  # noqa: F811
    module = program(SOURCE, opens=[{"event": "call", "call": "something", "enter": {"size": "size(x)"}}])
    assert asyncio.run(module.opens([1])) == 5
    assert [(event, extra or {}) for event, extra in brief(records)] == [("call", {})]
