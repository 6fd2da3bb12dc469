"""Recording any value never raises, keeps the other fields, and writes JSON of bounded length."""

import argparse
import collections
import concurrent.futures
import datetime
import decimal
import enum
import fractions
import json
import math
import sys
import threading
import types
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_instrument import bind, span
from sglang_instrument.recording.keep.clock import Clock
from sglang_instrument.recording.keep.encoder import LineEncoder
from sglang_instrument.recording.keep.line_types import LONGEST_LINE
from sglang_instrument.recording.measure import spans
from sglang_instrument.recording.measure.values import first_entries, make_encodable, reduce_value


def no_constant(name):
    raise AssertionError(f"{name} is no JSON")


def written(*extras):
    """Encode records with these fields in one batch; return the records as read back."""
    buffer = []
    before = spans.current_buffer()
    spans.use_buffer(buffer)
    try:
        for extra in extras:
            with span("measured", **extra):
                pass
    finally:
        spans.use_buffer(before)
    pieces = LineEncoder(Clock()).encode_all(buffer)
    lines = [line for _, encoded, _, _ in pieces for line in encoded.splitlines(True)]
    assert all(len(line) <= LONGEST_LINE for line in lines)
    return [json.loads(line, parse_constant=no_constant) for line in lines]


def logged(value):
    """Return the logged form of a value."""
    (record,) = written({"value": value})
    return record["extra"]["value"]


class Hostile:
    """A value whose repr raises, except for hypothesis, which prints it when a test fails."""

    def __repr__(self):
        if "hypothesis" in sys._getframe(1).f_code.co_filename:
            return "Hostile()"
        raise RuntimeError("repr")


class LyingList(list):
    def __len__(self):
        raise RuntimeError("len")

    def __iter__(self):
        raise RuntimeError("iter")


class Colour(enum.Enum):
    RED = "red"
    OTHERS = (1, 2)


def cyclic_list():
    cycle = [1]
    cycle.append(cycle)
    return cycle


def cyclic_dict():
    cycle = {}
    cycle["self"] = cycle
    return cycle


def deep_list():
    deep = []
    for _ in range(10_000):
        deep = [deep]
    return deep


any_text = st.text(st.characters(codec=None), max_size=50)  # including lone surrogates and NUL
plain = st.none() | st.booleans() | st.integers() | st.floats() | any_text
leaves = (
    plain
    | st.sampled_from([10**400, -(10**30), 2**64, -(2**63) - 1])
    | st.complex_numbers()
    | st.binary(max_size=50)
    | st.dates()
    | st.decimals()
    | st.uuids()
    | st.sampled_from([object(), Hostile(), Hostile, Colour.RED, Colour.OTHERS, len, ..., NotImplemented])
    | st.builds(Hostile)
    | st.sampled_from(["x" * 100_000, "\0" * 20_000, "\ud800" * 20_000, b"x" * 100_000, range(10**9)])
    | st.builds(cyclic_list)
    | st.builds(cyclic_dict)
    | st.builds(deep_list)
)
keys = (
    any_text
    | st.integers()
    | st.none()
    | st.floats()
    | st.tuples(st.integers(), any_text)
    | st.binary(max_size=9)
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(keys, inner, max_size=6)
        | st.tuples(inner, inner)
        | st.builds(LyingList, st.lists(inner, max_size=3))
        | st.builds(collections.OrderedDict, st.dictionaries(keys, inner, max_size=3))
        | st.builds(types.SimpleNamespace, held=inner)
        | st.sets(st.integers(), max_size=6)
        | leaves.map(lambda value: [value] * 20)
        | plain.map(lambda value: [value] * 5_000)  # more than is copied
    ),
    max_leaves=8,
)


@settings(max_examples=100)
@given(extra=st.dictionaries(any_text, values, max_size=4))
def test_any_value_is_recorded_without_raising_beside_neighbours_that_stay_as_they_are(extra):
    extra.pop("phase", None)
    before, record, after = written({"n": 1}, extra, {"n": 2})
    assert (before["extra"], after["extra"]) == ({"n": 1}, {"n": 2})
    assert record["event"] == "measured"
    assert record["duration_sec"] >= 0


@settings(max_examples=100)
@given(value=values)
def test_what_was_reduced_never_changes_afterwards(value):
    once = make_encodable(reduce_value(value))
    assert make_encodable(reduce_value(once)) is not None or once is None
    assert _holds_only_plain(once)


def _holds_only_plain(value):
    if isinstance(value, dict):
        return all(type(key) is str and _holds_only_plain(entry) for key, entry in value.items())
    if isinstance(value, list):
        return all(map(_holds_only_plain, value))
    return value is None or type(value) in (int, str, bool) or (type(value) is float and math.isfinite(value))


def test_numbers_that_json_cannot_hold_become_null_or_text():
    assert logged(float("nan")) is None
    assert logged([math.inf, 1.5]) == [None, 1.5]
    assert logged(2**64 - 1) == 2**64 - 1
    assert logged(2**64) == str(2**64)
    assert logged(10**5000).startswith("0x")  # Python refuses to write so many digits


def test_text_is_cut_and_lone_surrogates_are_replaced():
    assert logged("a\ud800b") == "a?b"
    assert len(logged("x" * 10_000_000)) == 256 + 3
    assert len(logged(["y" * 10_000_000])[0]) == 256 + 3
    assert logged(b"secret") == "<6 bytes>"


class HostileShape:
    """A value of numpy's, as far as its type says, whose shape raises."""

    __module__ = "numpy"

    @property
    def shape(self):
        raise RuntimeError("shape")


def test_objects_are_named_by_their_type_and_a_few_types_are_shown():
    secret = argparse.Namespace(token="hf_secret")
    assert logged(secret) == "Namespace"
    assert logged([secret, {"args": secret}]) == ["Namespace", {"args": "Namespace"}]
    assert logged(len) == "builtin_function_or_method"
    assert logged(decimal.Decimal("1.5")) == "Decimal('1.5')"
    assert logged(fractions.Fraction(1, 3)) == "Fraction(1, 3)"
    assert logged(datetime.date(2026, 1, 2)) == "datetime.date(2026, 1, 2)"
    assert logged(Path("a/b")) == "PosixPath('a/b')"
    assert logged(1 + 2j) == "(1+2j)"
    assert logged(range(3)) == "range(0, 3)"
    assert logged(Hostile) == "Hostile"

    class Shown(decimal.Decimal):
        def __repr__(self):
            return "secret"

    assert logged(Shown("1.5")) == "Shown"


@pytest.mark.parametrize(
    ("address", "cut"),
    [
        ("http://user:pass@router:30000/v1", "http://router:30000/v1"),
        ("https://token@router", "https://router"),
        ("http://user:p@ss@router", "http://router"),
        ("user:pass@10.0.0.1:8000", "10.0.0.1:8000"),
        ("from http://u:p@a to http://u:p@b/c?d=e@f", "from http://a to http://b/c?d=e@f"),
        ("a@b.org", "a@b.org"),
        ("http://router/a@b", "http://router/a@b"),
    ],
)
def test_an_address_loses_its_user_and_password_wherever_it_stands(address, cut):
    assert logged(address) == cut
    assert logged([address, {"url": address}]) == [cut, {"url": cut}]


def test_a_cut_never_leaves_the_first_half_of_a_password():
    text = logged("see http://user:" + "p" * 300 + "@router")
    assert text == "see http://router"


def test_keys_become_text():
    assert logged({1: "a", None: "b", (2, 3): "c", Colour.RED: "d", 10**30: "e"}) == {
        "1": "a",
        "None": "b",
        "[2, 3]": "c",
        "red": "d",
        str(10**30): "e",
    }


def test_cycles_and_depth_end_in_a_description():
    assert logged(cyclic_list()) == [1, [1, [1, "<list of 2>"]]]
    assert logged(cyclic_dict()) == {"self": {"self": {"self": "<dict of 1>"}}}
    assert logged(deep_list()) == [[["<list of 1>"]]]


def test_a_collection_is_copied_up_to_a_bound_that_holds_for_all_its_levels():
    assert logged([1] * 5000)[-1] == "... 5000 in all"
    row = [0] * 4096
    assert logged([row] * 10)[0] == [*([0] * 409), "... 4096 in all"]
    assert set(reduce_value([[row] * 4096] * 4096)) == {"<list of 4096>", "... 4096 in all"} - {
        "... 4096 in all"
    }


def test_a_list_of_response_lengths_is_logged_whole():
    assert logged(list(range(4096))) == list(range(4096))


def test_subclasses_are_read_without_their_own_code():
    Point = collections.namedtuple("Point", "x y")
    assert logged(Point(1, 2)) == [1, 2]
    assert logged(LyingList([1, 2])) == [1, 2]
    assert logged(collections.Counter("aab")) == {"a": 2, "b": 1}
    assert logged(collections.defaultdict(int, a=1)) == {"a": 1}
    assert logged(Colour.RED) == "red"


def test_a_value_whose_own_code_fails_costs_no_neighbour():
    assert logged({"good": 1, "bad": Hostile()}) == {"good": 1, "bad": "Hostile"}
    assert logged({"good": 1, "bad": HostileShape()}) == {"good": 1, "bad": "<HostileShape: RuntimeError>"}


def test_containers_of_other_types_are_named_and_not_read():
    secret = "the prompt"
    future = concurrent.futures.Future()
    future.set_result(secret)
    for holder in (
        ValueError(secret),
        types.SimpleNamespace(text=secret),
        future,
        collections.deque([secret]),
    ):
        assert secret not in logged(holder)
        assert type(holder).__name__ in logged(holder)


def test_a_record_that_is_too_long_keeps_its_short_fields_and_says_so():
    (record,) = written({"lengths": ["x" * 200] * 4000, "n": 7, "name": "short"})
    assert record["extra"] == {"n": 7, "name": "short", "truncated": True}


def test_a_list_that_another_thread_changes_is_copied_at_one_moment():
    growing, stop = {}, threading.Event()

    def change():
        number = 0
        while not stop.is_set():
            growing[number % 2000] = number
            growing.pop((number * 7) % 2000, None)
            number += 1

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(300):
            assert isinstance(reduce_value(growing), dict)
            assert isinstance(reduce_value(growing.keys()), str)
    finally:
        stop.set()
        thread.join()


def test_a_copy_that_another_thread_spoils_is_made_again():
    tries = []

    def entries():
        tries.append(1)
        yield 1
        if len(tries) == 1:
            raise RuntimeError("dictionary changed size during iteration")
        yield 2

    assert first_entries(5, entries) == [1, 2]


def test_numpy_scalars_and_short_arrays_become_numbers():
    numpy = pytest.importorskip("numpy")
    assert logged(numpy.float32(0.5)) == 0.5
    assert logged(numpy.int64(3)) == 3
    assert logged(numpy.bool_(True)) is True
    assert logged(numpy.str_("a")) == "a"
    assert logged(numpy.array([1, 2])) == [1, 2]
    assert logged(numpy.array([numpy.nan, 1])) == [None, 1]
    assert logged(numpy.array([Hostile()], dtype=object)) == ["Hostile"]
    assert logged(numpy.zeros((3, 4), numpy.float32)) == "tensor(cpu, f32, [3, 4])"


def test_a_tensor_is_read_only_where_its_numbers_lie_at_hand():
    torch = pytest.importorskip("torch")
    assert logged(torch.tensor(2.5)) == 2.5
    assert logged(torch.tensor(float("nan"))) is None
    assert logged(torch.nn.Parameter(torch.tensor(1.5))) == 1.5
    assert logged(torch.zeros(3, 4)) == "tensor(cpu, f32, [3, 4])"
    assert logged(torch.zeros((), device="meta")) == "tensor(meta, f32, [])"
    assert logged(torch.zeros((2,), dtype=torch.bfloat16, device="meta")) == "tensor(meta, bf16, [2])"
    assert logged({"loss": torch.ones((), device="meta")}) == {"loss": "tensor(meta, f32, [])"}
    assert logged(torch.Size([1, 2])) == [1, 2]
    assert logged(torch.float32) == "torch.float32"
    assert logged(torch.device("cuda:0")) == "cuda:0" or "cuda" in logged(torch.device("cuda:0"))


def test_a_tensor_that_is_being_traced_is_described():
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert reduce_value(torch.tensor(1.0)) == "tensor(cpu, f32, [])"


def test_a_tensor_of_a_subclass_is_described_for_reading_it_may_be_a_collective_call():
    torch = pytest.importorskip("torch")

    class Distributed(torch.Tensor):
        __module__ = "torch.distributed.tensor"

        def item(self):
            raise AssertionError("read")

    assert reduce_value(torch.tensor(1.0).as_subclass(Distributed)) == "tensor(cpu, f32, [])"


@pytest.mark.parametrize("number", [math.inf, 10**30, -(10**30)])
def test_a_step_worker_or_turn_that_is_no_number_of_64_bits_is_not_bound(number):
    with bind(step=number, worker=number, turn=number):
        (record,) = written({"n": 1})
    assert (record["step"], record["workid"], record["extra"]) == (0, 0, {"n": 1})


def test_a_request_id_that_is_no_id_is_cut():
    with bind(request_id="\0" * 20_000):
        (record,) = written({})
    assert len(record["extra"]["request_id"]) < 1000


@pytest.mark.parametrize(
    "extra", [{"k" * 70_000: 1}, {f"{n}" * 1000: 1 for n in range(99)}, {"phase": "p" * 10**6}]
)
def test_a_record_whose_keys_are_too_long_is_cut(extra):
    (record,) = written(extra)
    assert record["event"] == "measured"


@settings(max_examples=60)
@given(step=values, worker=values, request_id=values, turn=values, validate=values, role=values)
def test_whatever_is_bound_never_raises(step, worker, request_id, turn, validate, role):
    with bind(step=step, worker=worker, request_id=request_id, turn=turn, validate=validate, role=role):
        (record,) = written({"n": 1})
    assert record["extra"]["n"] == 1


class _Proxy:
    """A lazy proxy outside of its context, like werkzeug's: even reading its class raises."""

    def __getattribute__(self, name):
        raise RuntimeError(name)


class _Opinionated(type):
    def __getattribute__(cls, name):
        raise RuntimeError(name)


class _Nameless(metaclass=_Opinionated):
    pass


@pytest.mark.parametrize(
    ("made", "logged"), [(lambda: _Proxy(), "_Proxy"), (lambda: _Nameless(), "RuntimeError")]
)
def test_a_value_of_which_not_even_the_class_can_be_asked_never_raises(made, logged):
    value = made()  # not a parameter: pytest reads the class of parameters
    [alone, within] = written({"value": value}, {"value": [value]})
    assert logged in alone["extra"]["value"]
    assert logged in within["extra"]["value"][0]


def test_an_enum_whose_value_raises_never_raises():
    armed = False  # not while the enum is made

    class Colour(enum.Enum):
        RED = 1

        def __getattribute__(self, name):
            if name == "_value_" and armed:
                raise RuntimeError(name)
            return enum.Enum.__getattribute__(self, name)

    red = Colour.RED
    armed = True
    [line] = written({"value": red})
    assert "RuntimeError" in line["extra"]["value"]
