"""The compiled readers give what the generated ones give, whatever they are handed."""

import copy
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
from sglang_instrument.errors import TableError
from sglang_instrument.patching import runs
from sglang_instrument.patching.fields import parse
from sglang_instrument.patching.measures import NAMES, UNBOUND
from sglang_instrument.patching.readers import build, generate, local_arguments, locals_of, truths
from sglang_instrument.recording import values as values_module
from sglang_instrument.recording.spans import Span
from sglang_instrument.testing import records as captured

pytestmark = pytest.mark.skipif(not native.ON, reason=f"nothing is compiled: {native.REASON}")

NAMED = ["a", "b", "c"]
EVENTS = ["turn", "call"]
FUNCTIONS = [name for name in NAMES if name not in ("pNN", "overNN")] + ["p50", "p95", "over2", "over500"]


class Raising:
    """Each attribute fails in its own way."""

    a = property(lambda self: 1 / 0)
    b = property(lambda self: self.nothing)

    def __len__(self):
        raise ValueError("no length")

    def __bool__(self):
        raise ValueError("no truth")


class OnDevice:
    """A tensor that may not be read."""

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


numbers = st.one_of(
    st.integers(-5, 700),
    st.booleans(),
    st.floats(-1e6, 1e6),
    st.sampled_from([2**63, -(2**70), math.nan, math.inf]),
)
odd = st.sampled_from(
    [
        *(Raising, OnDevice, cycle, counted, object),
        *(lambda: UNBOUND, lambda: Reason.STOP, lambda: Reason.MANY, lambda: b"bytes", lambda: 1j),
        *(lambda: iter([1, 2]), lambda: deque([1, 2]), lambda: UserDict(a=1), lambda: OrderedDict(b=[1])),
        *(lambda: np.arange(6).reshape(2, 3), lambda: np.float32(1.5), lambda: np.int64(3)),
        *(lambda: np.zeros(0), lambda: {1, 2}, lambda: range(4), lambda: "x" * 20_000),
        *(
            lambda: list(range(5000)),
            lambda: SimpleNamespace(shape=()),
            lambda: SimpleNamespace(shape=[2, 5]),
        ),
    ]
)
scalars = st.one_of(st.none(), numbers, st.text(max_size=5))
made = st.recursive(
    st.one_of(scalars.map(lambda value: lambda: value), odd),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda parts: lambda: [part() for part in parts]),
        st.lists(inner, max_size=3).map(lambda parts: lambda: tuple(part() for part in parts)),
        st.dictionaries(st.sampled_from([*NAMED, 0, 1]), inner, max_size=3).map(
            lambda parts: lambda: {key: part() for key, part in parts.items()}
        ),
        st.dictionaries(st.sampled_from(NAMED), inner, max_size=3).map(
            lambda parts: lambda: SimpleNamespace(**{key: part() for key, part in parts.items()})
        ),
    ),
    max_leaves=12,
)
steps = st.sampled_from(
    [".a", ".b", ".c", "[*]", "[?a]", "[?b]", "[0]", "[-1]", '["a"]', '["b"]', "[c]", "[c.a]"]
)
paths = st.builds(
    lambda root, ways, pick: root + "".join(ways) + pick,
    st.sampled_from([*NAMED, "result", *(f"inside.{event}" for event in EVENTS), "local.result"]),
    st.lists(steps, max_size=4),
    st.sampled_from(["", "", "", "{a}", "{x: a, b}"]),
)
values = st.one_of(
    paths,
    st.builds(lambda function, path: f"{function}({path})", st.sampled_from(FUNCTIONS), paths),
    st.sampled_from(["'text'", "3", "true"]),
)
texts = st.lists(values, min_size=1, max_size=3).map(" | ".join)
records = st.lists(
    st.dictionaries(st.sampled_from([*NAMED, "turn"]), scalars, max_size=3).map(
        lambda fields: {"duration_sec": 0.25, **fields}
    ),
    max_size=4,
)


def same(left, right):
    """Whether two results are equal to the last bit and type; NaN equals itself."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) or type(left).__module__ == "numpy":
        return repr(left) == repr(right)
    return left == right


def without_addresses(value):
    """Return a result whose reprs name no place in memory."""
    if isinstance(value, dict):
        return {key: without_addresses(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [without_addresses(entry) for entry in value]
    return re.sub(r"0x[0-9a-f]+", "0x", value) if type(value) is str else value


def run_over(inside):
    return SimpleNamespace(duration_sec=0.75, inside=copy.deepcopy(inside), value=[3, 1, 2])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(texts, min_size=1, max_size=5),
    st.tuples(made, made, made, made),
    st.dictionaries(st.sampled_from(EVENTS), records, max_size=2),
    st.booleans(),
)
def test_both_read_the_same_of_whatever_is_there(fields, makers, inside, asks):
    try:
        parsed = {f"f{number}": parse(text) for number, text in enumerate(fields)}
    except TableError:
        return
    if asks:
        parsed = truths(parsed)
    names = locals_of(parsed.values())
    makes = dict(zip(["a", "b", "c", "result"], makers, strict=True))
    compiled, generated = (
        without_addresses(
            make(parsed, local_arguments(names))(run_over(inside), *[makes[name]() for name in names])
        )
        for make in (build, generate)
    )
    assert same(compiled, generated), (fields, compiled, generated)


@pytest.fixture(scope="module")
def pure_values():
    """The module `recording.values` as it is where nothing is compiled."""
    spec = importlib.util.find_spec("sglang_instrument.recording.values")
    twin = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(native, "ON", False)
        spec.loader.exec_module(twin)
    return twin


@settings(max_examples=200, deadline=None)
@given(made)
def test_a_value_is_reduced_to_the_same(pure_values, make):
    compiled, pure = (
        without_addresses(reduce({"x": make(), "y": 1}))
        for reduce in (values_module.reduce, pure_values.reduce)
    )
    assert same(compiled, pure)
    assert same(
        *(without_addresses(one(make())) for one in (values_module.reduce_value, pure_values.reduce_value))
    )


def test_fields_that_are_loggable_are_kept_and_not_copied():
    extra = {"n": 1, "text": "t", "share": 0.5, "ok": True, "none": None}
    assert values_module.reduce(extra) is extra


def test_the_total_of_a_tensor_is_torch_s_own():
    torch = pytest.importorskip("torch")
    count = torch.arange(-3, 9).reshape(3, 4)
    tensors = [
        *(count, count.to(torch.int32), count.to(torch.int16), count.abs().to(torch.uint8), count > 2),
        *(count.T, count[:, 1:3], count[1:2].expand(5, 4), count.float() / 7, count.to(torch.bfloat16)),
        *(
            torch.tensor(7),
            torch.zeros(0, dtype=torch.long),
            torch.full((3,), 2**62),
            torch.tensor([2**31 - 1] * 3),
        ),
        *(torch.ones(2, requires_grad=True), torch.zeros(2, 3, device="meta"), torch.eye(3).to_sparse()),
    ]
    expressions = {"total": parse("total(t)"), "each": parse("total(t[*])"), "size": parse("size(t)")}
    for tensor in tensors:
        compiled, generated = (
            make(expressions, local_arguments(["t"]))(None, tensor) for make in (build, generate)
        )
        assert same(compiled, generated), tensor


def test_a_run_that_no_probe_made_is_refused_and_harms_nothing():
    for kind in (runs.RegionSpan, runs.ReportingSpan, runs.FullSpan, runs.GeneratorSpan):
        made = kind.__new__(kind)
        with captured() as seen, made:
            pass
        assert len(seen) == 0


def test_what_makes_readers_refuses_what_is_none_of_its_business():
    from sglang_instrument.native import extras, fields

    maker = fields._Maker(["a"])
    for call in (
        lambda: maker.step([], False),
        lambda: maker.step(None, False),
        lambda: maker.key_step(None),
        lambda: maker.along(None, None, [], None) and maker.along(1, 2, 3, 4),
        lambda: maker.walk(None, None),
        lambda: maker.node("key", lambda: 3),
        lambda: fields._Maker.__new__(fields._Maker).local("a"),
        lambda: fields.Reader()(None),
        lambda: fields.reader(None, None),
    ):
        with pytest.raises((TypeError, AttributeError, IndexError)):
            call()
    span = Span("event")
    span.extra = extras.Fields()
    assert span.extra == {}
