"""Counted awaits and measured blocks call the methods that Python calls: those of the class."""

import asyncio

import pytest
from planted import plant, table

from sglang_instrument.patching.probes.probe import make_probe
from sglang_instrument.patching.rewriting.patcher import Patcher
from sglang_instrument.testing import records

SOURCE = """
async def awaits(x):
    return await x

async def loops(x):
    return [each async for each in x]

async def enters(x):
    async with x as got:
        return got

async def waits(x):
    async with x as got:
        return got

def holds(x):
    with x as got:
        return got
"""
ENTERING = {"event": "entering", "entering": "x"}
PATCHES = [
    *({"target": name, "region": [{"event": name}]} for name in ("awaits", "loops", "enters")),
    {"target": "waits", "region": [{"event": "waits"}, ENTERING]},
    {"target": "holds", "region": [ENTERING]},
]
PROTOCOLS = {
    "awaits": ("__await__",),
    "loops": ("__aiter__", "__anext__"),
    "enters": ("__aenter__", "__aexit__"),
    "waits": ("__aenter__", "__aexit__"),
    "holds": ("__enter__", "__exit__"),
}


class Awaited:
    def __init__(self, result=None):
        self.result = result

    def __await__(self):
        yield
        return self.result


def answer(name, log, who):
    """Return what a method of this name returns, and note the call."""

    def method(*arguments):
        log.append((who, name, len(arguments)))
        if name == "__await__":
            return Awaited(5).__await__()
        if name == "__aiter__":
            return arguments[0] if arguments and not isinstance(arguments[0], type) else who
        if name == "__anext__":
            if len([entry for entry in log if entry[1] == name]) > 2:
                raise StopAsyncIteration
            return Awaited(6)
        return Awaited() if name == "__aexit__" else Awaited(7) if name == "__aenter__" else None

    return method


class Computed:
    def __init__(self, function, log):
        self.function, self.log = function, log

    def __get__(self, owner, kind):
        self.log.append(("bound", type(owner).__name__, kind.__name__))
        return lambda *arguments: self.function(owner, *arguments)


def plain(names, log):
    return type("Plain", (), {name: answer(name, log, "class") for name in names})()


def shadowed(names, log):
    thing = plain(names, log)
    for name in names:
        setattr(thing, name, answer(name, log, "instance"))
    return thing


def only_in_the_instance(names, log):
    thing = type("Empty", (), {})()
    for name in names:
        setattr(thing, name, answer(name, log, "instance"))
    return thing


def only_in_the_metaclass(names, log):
    meta = type("Meta", (type,), {name: answer(name, log, "metaclass") for name in names})
    return meta("OfMeta", (), {})()


def shadowed_by_a_metaclass(names, log):
    meta = type("Meta", (type,), {name: property(lambda kind: 1 / 0) for name in names})
    return meta("OfMeta", (), {name: answer(name, log, "class") for name in names})()


def static(names, log):
    return type("Static", (), {name: staticmethod(answer(name, log, "static")) for name in names})()


def of_class(names, log):
    return type("OfClass", (), {name: classmethod(answer(name, log, "class")) for name in names})()


def computed(names, log):
    return type("WithComputed", (), {name: Computed(answer(name, log, "computed"), log) for name in names})()


def inherited(names, log):
    base = type("Base", (), {name: answer(name, log, "base") for name in names})
    return type("Inheriting", (base,), {"__getattr__": lambda self, name: 1 / 0})()


def answering(names, log):
    return type("Answering", (), {"__getattr__": lambda self, name: answer(name, log, "getattr")})()


def without_the_last(names, log):
    return plain(names[:-1], log)


MAKERS = [
    *(plain, shadowed, only_in_the_instance, only_in_the_metaclass, shadowed_by_a_metaclass),
    *(static, of_class, computed, inherited, answering, without_the_last),
]


def outcome(function, make, names):
    log = []
    try:
        result = function(make(names, log))
        result = asyncio.run(result) if asyncio.iscoroutine(result) else result
    except Exception as error:
        return type(error), str(error), log
    return result, None, log


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("name", PROTOCOLS)
def test_special_methods_are_called_as_python_calls_them(tmp_path, monkeypatch, name, make):
    monkeypatch.syspath_prepend(str(tmp_path))
    module = plant(tmp_path, SOURCE)
    expected = outcome(getattr(module, name), make, PROTOCOLS[name])
    patcher = Patcher([table(*PATCHES)], make_probe=make_probe)
    patcher.install()
    try:
        with records():
            result, message, log = outcome(getattr(module, name), make, PROTOCOLS[name])
    finally:
        patcher.uninstall()
    assert {site.state for site in patcher.results()} <= {"found", "pending"}
    assert (result, message) == expected[:2]
    assert log == expected[2]
