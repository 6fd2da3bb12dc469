"""Functions that read their own locals, in any way, get the same as without instrumentation."""

import pytest
from planted import plant, snapshot, table

from sglang_instrument.patching.probes.probe import make_probe
from sglang_instrument.patching.rewriting.patcher import Patcher
from sglang_instrument.testing import records

SOURCE = """
import builtins
import inspect
import sys
from builtins import vars as show


def marker(x):
    return x


def shown(saved):
    return {name: value for name, value in saved.items() if value is not saved}


def kept(n):
    saved = vars()
    for i in range(n):
        y = marker(i)
        if i == 1:
            break
    return shown(saved)


def kept_by_frame(n):
    saved = inspect.currentframe().f_locals
    for i in range(n):
        y = marker(i)
        if i == 1:
            break
    return shown(saved)


def kept_by_sys(n):
    saved = sys._getframe().f_locals
    for i in range(n):
        y = marker(i)
        if i == 1:
            break
    return shown(saved)


def kept_by_alias(n):
    saved = show()
    for i in range(n):
        y = marker(i)
        if i == 1:
            break
    return shown(saved), sorted(show())


def kept_by_module(n):
    saved = builtins.locals()
    for i in range(n):
        y = marker(i)
        if i == 1:
            break
    return shown(saved), sorted(builtins.dir())


def executed(n):
    for i in range(n):
        y = marker(i)
        exec("z = n + 1")
        if i == 1:
            break
    return eval("z"), y


def kept_by_callee(n):
    saved = caller_locals()
    for i in range(n):
        y = marker(i)
        if i == 1:
            break
    return saved["n"], i


def caller_locals():
    return sys._getframe(1).f_locals


class Mortal:
    def __init__(self, name, died):
        self.name, self.died = name, died

    def __del__(self):
        self.died.append(self.name)


def dying(died):
    "Holds two objects to its end."
    first = Mortal("first", died)
    second = Mortal("second", died)
    marker(first)


def named(n):
    first = marker(n)
    second = marker(n)
    return list(vars())
"""
REGION = {"event": "part", "from": "marker", "exit": {"y": "y", "saved": "size(saved)"}}
NAMES = [
    *("kept", "kept_by_frame", "kept_by_sys", "kept_by_alias", "kept_by_module"),
    *("executed", "kept_by_callee"),
]


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    return plant(tmp_path, SOURCE)


def outcome(function):
    try:
        return function(5)
    except NameError as error:  # from Python 3.13 on, `exec` binds nothing here
        return str(error)


@pytest.mark.parametrize("region", [REGION, {**REGION, "from": "range"}], ids=["inside", "around the loop"])
@pytest.mark.parametrize("name", NAMES)
def test_a_function_that_reads_its_own_locals_returns_the_same(module, name, region):
    function = getattr(module, name)
    before, expected = snapshot(module), outcome(function)
    patcher = Patcher([table({"target": name, "region": [region]})], make_probe=make_probe)
    patcher.install()
    try:
        with records() as recorded:
            assert outcome(function) == expected
    finally:
        patcher.uninstall()
    assert len(recorded.of("part")) in (1, 2)
    assert snapshot(module) == before


@pytest.mark.parametrize("name", ["dying", "named"])
def test_locals_keep_their_order_when_a_probe_is_handed_a_later_one_first(module, name):
    def seen():
        died = []
        return getattr(module, name)(died), died

    expected = seen()
    region = {"event": "part", "enter": {"later": "second"}}
    patcher = Patcher([table({"target": name, "region": [region]})], make_probe=make_probe)
    patcher.install()
    try:
        with records() as recorded:
            assert seen() == expected
    finally:
        patcher.uninstall()
    assert len(recorded.of("part")) == 1
