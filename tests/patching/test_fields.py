"""The field language: what expressions return, which ones are refused, and that no value makes one raise."""

import enum
import sys
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_instrument.errors import TableError
from sglang_instrument.patching.probes import finished_regions
from sglang_instrument.patching.probes.field_readers import build, condition, local_arguments, locals_of
from sglang_instrument.patching.tables.field_functions import UNBOUND
from sglang_instrument.patching.tables.field_language import Constant, Path, PathStep, parse
from sglang_instrument.recording.measure.binding import bind
from sglang_instrument.recording.measure.context import forget_all
from sglang_instrument.recording.measure.spans import Span


def compiled(fields, moment="exit"):
    """Return the locals that the fields read, and their reader."""
    parsed = {name: parse(text, moment) for name, text in fields.items()}
    names = locals_of(parsed.values())
    return names, build(parsed, local_arguments(names))


def read(text, moment="exit", run=None, **local):
    """Read one field; a dict without "x" means that it is missing."""
    names, reader = compiled({"x": text}, moment)
    return reader(run, *[local.get(name, UNBOUND) for name in names])


def run_with(**attributes):
    return SimpleNamespace(**{"duration_sec": 2.0, "inside": {}, "value": None, **attributes})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("request.request_id", "r1"),
        ("request.ids", [5, 6, 7]),
        ("request.ids[0]", 5),
        ("request.ids[-1]", 7),
        ('request.meta["tokens"]', 12),
        ("request.meta['tokens']", 12),
        ("requests[*].request_id", ["r1", "r1"]),
        ("requests[*].meta['tokens']", [12, 12]),
        ("requests[*].ids[0]", [5, 5]),
        ("requests[*].ids[*]", [[5, 6, 7], [5, 6, 7]]),
        ("size(request.ids)", 3),
        ("size(requests)", 2),
        ("size(requests[*].ids)", [3, 3]),
        ("total(request.ids)", 18),
        ("total(requests[*].ids)", [18, 18]),
        ("total(requests[*].meta['tokens'])", 24),
        ("mean(request.ids)", 6.0),
        ("mean(requests[*].ids)", 3.0),
        ("min(request.ids)", 5),
        ("max(request.ids)", 7),
        ("p0(request.ids)", 5),
        ("p50(request.ids)", 6),
        ("p75(request.ids)", 6.5),
        ("p100(request.ids)", 7),
        ("over5(request.ids)", 2),
        ("any(request.ids)", True),
        ("any(request.empty)", False),
        ("any(request.ids[*])", True),
        ("any(request.zeros[*])", False),
        ("not(request.zeros[*])", True),
        ("mean(request.empty)", 0),
        ("max(request.empty)", 0),
        ("p95(request.empty)", 0),
        ("'tensor'", "tensor"),
        ("3", 3),
        ("-3", -3),
        ("true", True),
        ("false", False),
        ("request.nothing | request.request_id", "r1"),
        ("nothing.at.all | request.ids[9] | 'none'", "none"),
        ("request.none | 'unused'", None),
        ("request.reason", "stop"),
        (" size ( request . ids ) ", 3),
    ],
)
def test_an_expression_reads_what_it_says(text, expected):
    reason = enum.Enum("Reason", {"STOP": "stop"}).STOP
    request = SimpleNamespace(
        request_id="r1",
        ids=[5, 6, 7],
        empty=[],
        zeros=[0, None],
        meta={"tokens": 12},
        none=None,
        reason=reason,
    )
    assert read(text, request=request, requests=[request, request]) == {"x": expected}


@pytest.mark.parametrize(
    "text",
    [
        "missing",
        "missing.attribute",
        "request.missing",
        "request['key']",
        "request[0]",
        "request[*]",
        "size(request)",
        "size(missing)",
        "total(words)",
        "mean(request)",
        "any(missing)",
        "percent(request)",
    ],
)
def test_what_cannot_be_read_is_missing(text):
    assert read(text, run=run_with(), request=object(), words="abc") == {}


@pytest.mark.parametrize("value", ["abc", b"abc", None, 3, 0.5, True, [1, 2], (1, 2)], ids=repr)
def test_what_has_no_keys_has_no_such_key(value):
    assert read("value['key']", value=value) == read("total(each[*]['key'])", each=[value]) == {}
    assert read("value['key'][0] | 'none'", value=value) == {"x": "none"}
    assert read("missing(value['key'])", value=value) == {"x": True}
    assert read("values[*]['key']", values={"text": value, "meta": {"key": 1}}) == {}


def test_one_field_that_cannot_be_read_costs_its_neighbours_nothing():
    _, reader = compiled({"a": "x.real", "b": "x.nothing", "c": "x.imag"})
    assert reader(None, 3) == {"a": 3, "c": 0}


def test_result_item_and_inside_are_roots_only_where_they_can_exist():
    assert parse("result.x", "enter").locals == ("result",)
    assert parse("inside.x", "enter").locals == ("inside",)
    assert parse("item.x", "exit").locals == ("item",)
    assert parse("result.x", "item").locals == ("result",)
    assert parse("result.x", "exit").locals == ()
    assert parse("item.x", "item").locals == ()


def test_a_local_that_is_called_like_a_root_can_be_read():
    assert locals_of([parse("local.result.x")]) == ("result",)
    run = run_with(value={"x": 1})
    assert read('local.result["x"] | "no"', run=run, result={"x": 2}) == {"x": 2}
    assert read('result["x"]', run=run, result={"x": 2}) == {"x": 1}
    assert read("size(local.inside)", run=run, inside=[1, 2]) == {"x": 2}


def test_a_key_may_be_what_another_path_leads_to():
    rewards, args = {"score": 0.5}, SimpleNamespace(key="score", none=None)
    assert locals_of([parse("rewards[args.key]")]) == ("rewards", "args")
    assert read("rewards[args.key]", rewards=rewards, args=args) == {"x": 0.5}
    assert read("samples[*].r[args.key]", samples=[SimpleNamespace(r=rewards)], args=args) == {"x": [0.5]}
    assert read("rewards[args.none] | 'no key'", rewards=rewards, args=args) == {"x": "no key"}


def test_a_number_is_told_from_texts_and_of_a_record_only_its_numbers_are_read():
    scores = {"score": 0.5, "right": True, "answer": "not to be logged"}
    assert read("number(x)", x=2) == read("number(x)", x=np.array(2)) == {"x": 2}
    assert read("number(x)", x=scores) == read("number(x)", x="0.5") == read("number(x)", x=None) == {}
    assert read("numbers(x)", x=scores) == {"x": {"score": 0.5, "right": True}}
    assert read("numbers(x)", x={"answer": "text"}) == read("numbers(x)", x=3) == {}


def test_the_newest_step_of_the_process_can_be_read_where_none_or_an_older_one_is_bound():
    forget_all()
    assert read("latest.step", "enter") == {}
    with bind(step=3), bind(step=4, validate=True), bind(step=2):
        assert read("latest.step", "enter") == {"x": 3}
        assert read("bound.step", "enter") == {"x": 2}
    assert read("latest.step | -1", "exit", latest=SimpleNamespace(step=9)) == {"x": 9}


def test_what_is_bound_around_and_imported_modules_can_be_read_at_entry():
    with bind(step=3, request_id="r"):
        assert read("bound.step", "enter") == {"x": 3}
        assert read("bound.turn | -1", "enter") == {"x": -1}
    assert read("any(bound.step)", "enter") == {}
    assert read("missing(bound.step)", "enter") == {"x": True}
    with bind(step=0):
        assert read("missing(bound.step)", "enter") == {"x": False}
    assert read('modules["sys"].maxsize', "enter") == {"x": sys.maxsize}
    assert read('modules["not.imported"].x', "enter") == {}
    with pytest.raises(TableError, match=r"expected bound\.ID, one of step, worker"):
        parse("bound.steps", "enter")
    with pytest.raises(TableError, match=r"expected latest\.step"):
        parse("latest.worker", "enter")
    with pytest.raises(TableError, match=r"expected before\.EVENT"):
        parse("size(before)", "enter")


def test_the_newest_fields_of_an_event_are_read_wherever_its_region_was():
    names, reader = compiled({"x": "last.call_made.version | 0"}, "enter")
    assert (names, reader(None)) == ((), {"x": 0})
    for version in (1, None, 2):
        finished_regions.report(Span("call_made", {"version": version}))
        expected = {"x": version or 1}
        assert reader(None) == expected
    finished_regions.report(Span("call_made", {"error": "no version"}))
    assert reader(None) == {"x": 2}
    assert parse("last.call_made.version", "enter").last_events == {"call_made"}
    assert parse("last.x", "exit").locals == ("last",)
    with pytest.raises(TableError, match=r"expected last\.EVENT"):
        parse("size(last)", "enter")


def test_numbers_are_lessened_and_repeated_elements_read_once():
    assert read("minus1(step)", step=5) == {"x": 4}
    assert read("minus12(step)", step=np.int64(5)) == {"x": -7}
    assert read("minus1(step)", step=None) == read("minus1(step)", step="5") == {}
    uids = np.array(["b", "a", "b"], dtype=object)
    assert read("unique(uids)", uids=uids) == {"x": ["b", "a"]}
    assert read("unique(uids[*])", uids=["a", "a"]) == {"x": ["a"]}
    assert read("unique(uids)", uids=3) == {}


def test_the_returned_value_is_read_from_the_run():
    names, reader = compiled({"tokens": 'result["meta"]["tokens"]', "n": "size(texts)"})
    assert names == ("texts",)
    run = run_with(value={"meta": {"tokens": 4}})
    assert reader(run, ["a", "b"]) == {"tokens": 4, "n": 2}


def test_inside_counts_adds_up_and_tolerates_records_that_lack_a_field():
    records = {"turn": [{"duration_sec": 0.5, "called": True}, {"duration_sec": 0.25}]}
    run = run_with(inside=records)
    assert read("total(inside.turn[*].duration_sec)", run=run) == {"x": 0.75}
    assert read("percent(inside.turn[*].duration_sec)", run=run) == {"x": 37.5}
    assert read("total(inside.turn[*].called)", run=run) == {"x": 1}
    assert read("inside.turn", run=run) == {"x": records["turn"]}
    assert read("inside.turn[-1].duration_sec", run=run) == {"x": 0.25}
    assert read("size(inside.tool)", run=run) == {"x": 0}
    assert read("any(inside.tool)", run=run) == {"x": False}
    assert parse("inside.turn | any(inside.tool)").events == {"turn", "tool"}


def test_percent_of_a_run_without_duration_is_zero():
    run = run_with(duration_sec=0.0, inside={"turn": [{"duration_sec": 0.0}]})
    assert read("percent(inside.turn[*].duration_sec)", run=run) == {"x": 0.0}


@pytest.mark.parametrize("function", ["count", "sum", "percent"])
def test_what_no_record_tells_has_no_value_rather_than_zero(function):
    assert read(f"{function}(inside.turn[*].duration_sec)", run=run_with()) == {}
    assert read("inside.turn[*]{turn, time: duration_sec}", run=run_with()) == {}
    run = run_with(inside={"call": [{"duration_sec": 0.5}, {"duration_sec": 0.5}]})
    text = f"{function}(inside.turn[*].duration_sec) | {function}(inside.call[*].duration_sec)"
    assert read(text, run=run) == {"x": {"count": 2, "sum": 1.0, "percent": 50.0}[function]}


def test_only_fields_without_locals_and_results_survive_an_exception():
    assert parse("inside.turn").survives_error
    assert parse("'text'").survives_error
    assert not parse("inside.turn | count").survives_error
    assert not parse("result").survives_error


def test_arrays_are_measured_and_scalars_become_numbers():
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(6).reshape(2, 3)
    assert read("size(a)", a=array) == {"x": 3}
    assert read("total(a)", a=array) == {"x": 15}
    assert read("mean(a)", a=array[0]) == {"x": 1.0}
    assert read("p50(a)", a=array[1]) == {"x": 4}
    assert read("a[1][2]", a=array) == {"x": 5}


def test_tensors_on_the_host_are_measured_and_those_on_a_device_are_never_read():
    torch = pytest.importorskip("torch")
    host, device = torch.ones(2, 3), torch.ones(2, 3, device="meta")
    assert read("total(t)", t=host) == {"x": 6.0}
    assert read("size(t)", t=device) == {"x": 3}
    for function in ("total", "mean", "min", "p50", "over1", "any"):
        assert read(f"{function}(t)", t=device) == {}
    assert read("total(ts[*])", ts=[device]) == {}


def test_reading_takes_no_items_from_an_iterator_and_makes_no_keys():
    numbers, table = iter([1, 2, 3]), defaultdict(list)
    for text in ("n[*]", "size(n)", "total(n)", "mean(n)", "max(n)", "p50(n)"):
        assert read(text, n=numbers) == {}
    assert list(numbers) == [1, 2, 3]
    assert read('t["key"]', t=table) == {}
    assert read("ts[*]['key']", ts=[table]) == {}
    assert not table


def test_a_condition_asks_the_value_and_not_what_the_log_would_show():
    class Empty:
        def __len__(self):
            return 0

    ask = condition({"": parse("queue", "enter")}, local_arguments(["queue"]))
    assert not ask(None, Empty())
    assert ask(None, [0])
    assert not ask(None, UNBOUND)


def test_large_values_become_loggable():
    assert read("x", x=object)["x"] == "object"
    assert len(read("x", x=SimpleNamespace(text="y" * 5000))["x"]) <= 256


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "expected a name, a function, a number or a 'text', got the end"),
        ("request.", "expected an attribute's name, got the end"),
        ("request.class", "expected an attribute's name, got 'class'"),
        ("request[", "a local, \\*, \\?attribute or \\?local.attribute, got the end"),
        ("request[name[0]]", "expected attributes and ']', got ']'"),
        ("request[name", "expected attributes and ']', got the end"),
        ("request[0", "expected ']', got the end"),
        ("len(x)", "no function 'len'; the functions are any, "),
        ("p101(x)", "no function 'p101'"),
        ("size(x", "expected '\\)', got the end"),
        ("size(size(x))", "expected '\\)', got '\\('"),
        ("size(3)", "expected a name, got '3'"),
        ("a b", "expected '\\|' or the end, got 'b'"),
        ("a |", "expected a name, a function, a number or a 'text', got the end"),
        ("a + b", "'\\+' is not allowed here"),
        ("3.5", "expected '\\|' or the end, got '\\.'"),
        ("lambda", "'lambda' is a Python keyword, not a local"),
        ("inside", "expected inside.EVENT"),
        ("inside[0]", "expected inside.EVENT"),
        ("'text", '"\'" is not allowed here'),
    ],
)
def test_an_error_quotes_the_expression_and_says_what_would_be_right(text, complaint):
    with pytest.raises(TableError, match=complaint) as caught:
        parse(text)
    assert repr(text) in str(caught.value)


def test_a_field_must_be_text():
    with pytest.raises(TableError, match="a field must be an expression in a string, got 5"):
        parse(5)


NAMES = st.sampled_from(["request", "turns", "output", "_x", "größe"])
STEPS = st.one_of(
    st.builds(PathStep, st.just("attribute"), NAMES),
    st.builds(PathStep, st.just("key"), st.integers(-5, 5)),
    st.builds(PathStep, st.just("key"), st.text("abc .|[*]", max_size=4)),
    st.just(PathStep("each")),
)
FUNCTIONS = st.sampled_from([None, "size", "total", "any", "mean", "min", "max", "p50", "over9", "percent"])
PATHS = st.builds(lambda root, steps, name: Path(root, tuple(steps), name), NAMES, st.lists(STEPS), FUNCTIONS)
CONSTANTS = st.builds(Constant, st.one_of(st.text("ab |.", max_size=5), st.integers(-99, 99), st.booleans()))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.just(UNBOUND)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=2), inner, max_size=4),
        st.builds(lambda values: SimpleNamespace(**values), st.fixed_dictionaries({"request": inner})),
    ),
    max_leaves=12,
)


def written(value):
    """Return the text of a parsed alternative in the language."""
    if isinstance(value, Constant):
        return (
            {True: "true", False: "false"}.get(value.value)
            if isinstance(value.value, bool)
            else repr(value.value)
        )
    text = value.root
    for step in value.steps:
        text += {"attribute": f".{step.name}", "each": "[*]", "key": f"[{step.name!r}]"}[step.kind]
    return text if value.function is None else f"{value.function}({text})"


@given(st.lists(st.one_of(PATHS, CONSTANTS), min_size=1, max_size=3))
def test_what_is_written_is_what_is_parsed(alternatives):
    assert parse(" | ".join(map(written, alternatives)), "enter").alternatives == tuple(alternatives)


@given(
    st.lists(st.one_of(PATHS, CONSTANTS), min_size=1, max_size=3), st.lists(VALUES, min_size=4, max_size=4)
)
def test_reading_never_raises_whatever_the_values_are(alternatives, values):
    text = " | ".join(map(written, alternatives))
    names, reader = compiled({"x": text})
    assert set(reader(run_with(), *values[: len(names)])) <= {"x"}


@given(st.text(max_size=30))
def test_any_text_is_either_read_or_refused_with_a_table_error(text):
    try:
        parse(text)
    except TableError:
        pass


def test_no_text_of_a_table_becomes_code():
    assert read('x["]); import os; ("]', x={"]); import os; (": 1}) == {"x": 1}


def test_a_key_that_is_missing_leaves_its_field_out_whatever_should_have_it():
    class Lazy(dict):
        def __missing__(self, key):
            raise AssertionError("asked to make an entry")

    for mapping in ({"a": 1}, Lazy(a=1)):
        assert read('x["a"]', x=mapping) == {"x": 1}
        assert read('x["b"]', x=mapping) == read('x["a"]["b"]', x=mapping) == {}
    assert read('x["b"]', x={"b": None}) == {"x": None}
    assert read('x["b"]', x=None) == read('x["b"]', x=3) == read("x[3]", x=[1]) == {}
    assert read("x[1]", x=[1, 2]) == {"x": 2}
    assert read("x[i.key]", x={"b": 2}, i=SimpleNamespace(key=[])) == {}
    assert read('x["b"] | x["c"]', x={"c": 4}) == {"x": 4}


def test_a_filter_goes_over_the_elements_whose_attribute_is_true():
    work, padding = SimpleNamespace(scores={"tool": 1.0}, ids=[1, 2]), SimpleNamespace(scores={}, ids=[0] * 9)
    assert read("size(requests[?scores].ids)", requests=[work, padding]) == {"x": [2]}
    assert read("max(requests[?scores].ids)", requests=[padding]) == {"x": 0}
    assert read("size(requests[?missing].ids)", requests=[work]) == {}


def test_a_filter_by_another_collection_goes_over_the_elements_at_its_true_places():
    batch = SimpleNamespace(rids=["a", "b", "c"], reasons=[None, {"type": "stop"}, {}])
    assert read("batch.rids[?batch.reasons]", batch=batch) == {"x": ["b"]}
    assert read("rids[?local.reasons]", rids=("a", "b"), reasons=[True, False]) == {"x": ["a"]}
    assert read("size(requests[?batch.reasons].ids)", requests=[batch] * 3, batch=batch) == {}
    batch.ids = [1, 2]
    assert read("size(requests[?batch.reasons].ids)", requests=[batch] * 3, batch=batch) == {"x": [2]}
    batch.reasons = []
    assert read("batch.rids[?batch.reasons] | 'other lengths'", batch=batch) == {"x": "other lengths"}


def test_a_filter_may_have_the_name_of_a_root_but_none_begins_at_one():
    assert read("x[?inside].ids", x=[SimpleNamespace(inside=1, ids=2)]) == {"x": [2]}
    assert read("x[?result.flags]", "enter", x=["a"], result=SimpleNamespace(flags=[1])) == {"x": ["a"]}
    for text in ("result.rids[?result.flags]", "x[result.key]"):
        with pytest.raises(TableError, match="'result' is not a local"):
            parse(text)


def test_a_record_is_taken_under_other_names_without_what_it_lacks():
    turns = [{"turn": 0, "duration_sec": 0.5, "tools": True}, {"turn": 1, "duration_sec": 1.5}]
    run = run_with(inside={"turn_end": turns})
    assert read("inside.turn_end[*]{turn, total: duration_sec, tools}", run=run) == {
        "x": [{"turn": 0, "total": 0.5, "tools": True}, {"turn": 1, "total": 1.5}]
    }
    assert read("reply{id}", reply={"id": 3, "text": "..."}) == {"x": {"id": 3}}
    assert read("reply{id}", reply=SimpleNamespace(id=3)) == {}


def test_not_is_true_of_zero_nothing_and_false():
    assert [read("not(x)", x=x)["x"] for x in (0, None, False, [], 1, [0])] == [True] * 4 + [False] * 2
    assert read("not(x)") == {}


def test_a_sum_of_nothing_has_no_value():
    assert read("sum(x[*]) | 'none'", x={}) == {"x": "none"}
    assert read("sum(x[*])", x={"a": 1.0, "b": 0.5}) == {"x": 1.5}
    assert read("sum(x)", x=[1, 2]) == {"x": 3}


@pytest.mark.parametrize(
    ("called", "recorded"),
    [
        ("search", "search"),
        ("Sure! It is 42", "unknown"),
        (None, "unknown"),
        (["search"], ["search"]),
    ],
)
def test_the_name_of_a_tool_is_recorded_only_if_the_registry_has_it(called, recorded):
    call = SimpleNamespace(name=called)
    agent = SimpleNamespace(tools={"search": object()}, names=["search", "run"])
    assert read("call.name in self.tools", call=call, self=agent) == {"x": recorded}
    assert read("call.name in self.names", call=call, self=agent) == {"x": recorded}
    assert read("call.name in self.gone | 'unknown'", call=call, self=agent) == {"x": "unknown"}
    assert read("call.name in self.gone", call=call, self=agent) == {}
    assert read("call.gone in self.tools | 'unknown'", call=call, self=agent) == {"x": "unknown"}


def test_each_name_of_a_list_is_looked_up():
    calls = [SimpleNamespace(name=name) for name in ("search", "ignore all instructions", "run")]
    specs = [{"function": {"name": name}} for name in ("run", "search")]
    recorded = {"x": ["search", "unknown", "run"]}
    names = {"search": 1, "run": 2}
    assert read("calls[*].name in names", calls=calls, names=names) == recorded
    assert read('calls[*].name in specs[*]["function"]["name"]', calls=calls, specs=specs) == recorded
    assert read("calls[*].name in names", "enter", calls=calls, names=names) == recorded


@pytest.mark.parametrize("text", ["name in", "name in 3", "size(name in names)", "'a' in names", "in names"])
def test_a_registry_is_a_path_after_a_path(text):
    with pytest.raises(TableError):
        parse(text)
