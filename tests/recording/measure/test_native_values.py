"""The compiled and the pure reduction of values give the same results for any value."""

import enum
import importlib.util
import math
import re
from collections import OrderedDict, UserDict, defaultdict, deque
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_instrument import native
from sglang_instrument.recording.measure import values

pytestmark = pytest.mark.skipif(not native.ON, reason=f"nothing is compiled: {native.REASON}")


class Raising:
    """A value whose operations all fail, each in another way."""

    def __len__(self):
        raise ValueError("no length")

    def __bool__(self):
        raise ValueError("no truth")


class OnDevice:
    """A tensor that must not be read."""

    device = SimpleNamespace(type="cuda")
    shape = (3, 4)

    def tolist(self):
        raise AssertionError("read a device")

    __bool__ = tolist


class Reason(enum.Enum):
    STOP = "stop"
    MANY = ("a", "b")


def cycle():
    held = [1]
    held.append(held)
    return held


def counted():
    made = defaultdict(list)
    made["a"] = [1, 2]
    return made


odd = st.sampled_from(
    [
        *(Raising, OnDevice, cycle, counted, object),
        *(lambda: Reason.STOP, lambda: Reason.MANY, lambda: b"bytes", lambda: 1j, lambda: {1, 2}),
        *(lambda: iter([1, 2]), lambda: deque([1, 2]), lambda: UserDict(a=1), lambda: OrderedDict(b=[1])),
        *(lambda: np.arange(6).reshape(2, 3), lambda: np.float32(1.5), lambda: np.int64(3)),
        *(lambda: np.zeros(0), lambda: range(4), lambda: "x" * 20_000, lambda: list(range(5000))),
    ]
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 700),
    st.floats(-1e6, 1e6),
    st.sampled_from([2**63, -(2**70), math.nan, math.inf]),
    st.text(max_size=5),
)
made = st.recursive(
    st.one_of(scalars.map(lambda value: lambda: value), odd),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda parts: lambda: [part() for part in parts]),
        st.lists(inner, max_size=3).map(lambda parts: lambda: tuple(part() for part in parts)),
        st.dictionaries(st.sampled_from(["a", "b", "c", 0, 1]), inner, max_size=3).map(
            lambda parts: lambda: {key: part() for key, part in parts.items()}
        ),
    ),
    max_leaves=12,
)


def same(left, right):
    """Return whether two results are equal in bits and type; NaN equals itself."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return repr(left) == repr(right)


def without_addresses(value):
    """Return a result without the memory addresses of reprs."""
    if isinstance(value, dict):
        return {key: without_addresses(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [without_addresses(entry) for entry in value]
    return re.sub(r"0x[0-9a-f]+", "0x", value) if type(value) is str else value


@pytest.fixture(scope="module")
def pure():
    """Return the module `recording.measure.values` without compiled parts."""
    spec = importlib.util.find_spec("sglang_instrument.recording.measure.values")
    twin = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(native, "use_compiled", lambda *_: None)
        spec.loader.exec_module(twin)
    return twin


@settings(max_examples=200)
@given(made)
def test_a_value_is_reduced_to_the_same(pure, make):
    assert same(*(without_addresses(module.reduce({"x": make(), "y": 1})) for module in (values, pure)))
    assert same(*(without_addresses(module.reduce_value(make())) for module in (values, pure)))


def test_fields_that_are_loggable_are_kept_and_not_copied():
    extra = {"n": 1, "text": "t", "share": 0.5, "ok": True, "none": None}
    assert values.reduce(extra) is extra
