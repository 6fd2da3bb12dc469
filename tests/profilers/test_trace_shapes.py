"""Traces in the shapes that real profilers write: no value of an event costs another one, or the command."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_instrument.cli.main import main
from sglang_instrument.traces.answers import analyse
from sglang_instrument.traces.event_numbers import nanoseconds, whole
from sglang_instrument.traces.kernels import category_of
from sglang_instrument.traces.table import read_trace

LARGE_US = 1_767_614_400_123_457  # 2026 in microseconds: a 64-bit float holds quarters of one


def kernel(number: int, **fields: Any) -> dict[str, Any]:
    args = {"stream": 7, "device": 0, "correlation": number}
    event = {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm",
        "pid": 0,
        "tid": 7,
        "ts": 100.0 * number,
        "dur": 40.0,
    }
    return event | {"args": args} | fields


def write(path: Path, events: list[dict[str, Any]], **header: Any) -> Path:
    path.write_text(json.dumps({**header, "traceEvents": events}))
    return path


@pytest.mark.parametrize(
    "odd",
    [
        {"cat": "cuda_sync", "args": {"stream": 4294967295}},
        {"args": {"device": 4294967295, "stream": 140234567890}},
        {"args": {"stream": 2**80, "correlation": 2**70, "bytes": -(2**90)}},
        {"ts": 1e30},
        {"ts": 2**70},
        {"ts": None, "dur": []},
        {"dur": "long"},
        {"dur": -1e308},
        {"name": ["a"], "pid": {}, "tid": None, "cat": 3},
        {"args": [1, 2]},
        {"args": None},
        {"name": "\ud800 lone"},
    ],
)
def test_a_value_that_does_not_fit_costs_no_other_event(tmp_path: Path, odd: dict[str, Any]) -> None:
    events = [kernel(number) for number in range(50)]
    path = write(tmp_path / "rank-0.trace.json", [*events[:25], kernel(25) | odd, *events[25:]])
    trace = read_trace(path)
    assert trace.header.broken == 0
    assert len(trace.events.filter(name="gemm", stream=7)) >= 50
    use = analyse(path).traces[0].use
    assert use["compute_sec"] == pytest.approx(50 * 40e-6, rel=0.05)
    assert main(["trace", str(path)]) == 0


def test_two_ranks_are_analysed_though_one_names_a_stream_of_32_bits(tmp_path: Path) -> None:
    for rank in range(2):
        odd = kernel(3, cat="cuda_sync", name="Context Sync", args={"stream": 4294967295, "device": 0})
        write(tmp_path / f"rank-{rank}.trace.json", [*(kernel(number) for number in range(50)), odd])
    analysis = analyse(tmp_path)
    assert analysis.unreadable == {}
    assert [trace.use["busy_sec"] for trace in analysis.traces] == pytest.approx([0.002, 0.002])
    assert analysis.traces[0].other_kinds == {"cuda_sync": 1}


def test_numbers_may_be_text(tmp_path: Path) -> None:
    copy = {"ph": "X", "cat": "cuda_runtime", "name": "hipMemcpyWithStream", "pid": 1, "tid": 1}
    events = [
        kernel(1),
        copy | {"ts": "141.5", "dur": "400000.25", "args": {"bytes": "256", "kind": "2", "correlation": "9"}},
        kernel(5000),
    ]
    path = write(tmp_path / "a.trace.json", events)
    trace = read_trace(path)
    row = trace.events.filter(name="hipMemcpyWithStream").row(0, named=True)
    assert (row["start_ns"], row["end_ns"], row["bytes"], row["correlation"]) == (
        141_500,
        400_141_750,
        256,
        9,
    )
    assert analyse(path).traces[0].tables["gaps"][0]["cpu"] == "hipMemcpyWithStream"


def test_times_that_are_integers_or_text_are_exact(tmp_path: Path) -> None:
    events = [kernel(1, ts=LARGE_US, dur=3), kernel(2, ts=f"{LARGE_US}.125", dur="0.375")]
    rows = read_trace(write(tmp_path / "a.trace.json", events)).events
    assert rows["start_ns"].to_list() == [LARGE_US * 1000, LARGE_US * 1000 + 125]
    assert (rows["end_ns"] - rows["start_ns"]).to_list() == [3000, 375]


def test_an_event_of_ascend_is_a_kernel_by_its_task(tmp_path: Path) -> None:
    task = {"ph": "X", "name": "MatMulV2", "pid": 7, "tid": 2, "ts": "1000.123", "dur": "12.5"}
    tasks = [
        task | {"args": {"Task Type": "AI_CORE"}},
        task | {"name": "idle", "args": {"Task Type": "EVENT_WAIT"}},
    ]
    trace = read_trace(write(tmp_path / "trace_view.json", tasks))
    assert trace.events["name"].cast(str).to_list() == ["MatMulV2"]
    assert trace.other_kinds == {"without a category": 1}


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("bmm_Bfloat16_Bfloat16_Fp32_t128x128x64_s3", "gemm"),
        ("Cijk_Alik_Bljk_BBS_BH_MT128x128x64", "gemm"),
        ("MatMulV2", "gemm"),
        ("hcom_allReduce__123_0_1", "communication"),
        ("FlashAttentionScore", "attention"),
        ("SwiGlu", "activation"),
        ("RmsNorm", "norm"),
        ("Cast", "elementwise"),
        ("TensorMove", "elementwise"),
    ],
)
def test_kernels_of_other_makers_have_categories(name: str, category: str) -> None:
    assert category_of(name) == category


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ({"name": "process_name", "ph": "M", "pid": 0}, ""),
        ({}, ""),
        (kernel(0) | {"nested": [{"a": 1}, {"b": 2}]}, ""),
    ],
)
def test_the_keys_of_the_first_event_do_not_matter_and_time_is_linear(
    tmp_path: Path, first: dict[str, Any], words: str
) -> None:
    path = write(tmp_path / "a.trace.json", [first, *(kernel(number) for number in range(60_000))])
    begun = time.process_time()
    trace = read_trace(path)
    assert time.process_time() - begun < 5  # it took 15 s and more where the keys mattered
    assert len(trace.events.filter(name="gemm")) >= 60_000
    assert trace.header.broken == 0


def test_no_gpu_events_are_no_success_where_a_gpu_was(tmp_path: Path, capsys: Any) -> None:
    call = kernel(1, cat="cuda_runtime", name="cudaLaunchKernel")
    other = kernel(2, cat="mtia_ccp_events", name="fft")
    path = write(tmp_path / "a.trace.json", [call, other])
    assert main(["trace", str(path)]) == 1
    said = capsys.readouterr().out
    assert "no GPU events" in said
    assert "mtia_ccp_events (1)" in said
    alone = write(tmp_path / "b.trace.json", [kernel(1, cat="cpu_op", name="aten::add")])
    assert main(["trace", str(alone)]) == 0


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from(["", "7", "-3.5", "1e9", "}, {", '"', "\\", "\x00", "\u20ac"]),
    st.lists(st.dictionaries(st.sampled_from("ab"), st.integers(0, 3), max_size=2), max_size=3),
)
FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "other")


@settings(max_examples=60)
@given(
    odd=st.lists(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5), max_size=6),
    arguments=st.lists(st.dictionaries(st.sampled_from(["stream", "device", "bytes"]), VALUES), max_size=6),
    cut=st.integers(0, 400),
    indent=st.sampled_from([None, 1]),
)
def test_events_of_any_values_cost_no_other(
    tmp_path_factory: pytest.TempPathFactory,
    odd: list[dict[str, Any]],
    arguments: list[dict[str, Any]],
    cut: int,
    indent: int | None,
) -> None:
    good = [kernel(number, name=f"good_{number}") for number in range(30)]
    events = [*odd, *good[:15], *(kernel(0, args=args) for args in arguments), *good[15:]]
    path = tmp_path_factory.mktemp("fuzz") / "a.trace.json"
    text = json.dumps({"traceEvents": events}, indent=indent)
    path.write_text(text)
    trace = read_trace(path)
    assert trace.header.broken == 0
    assert len(trace.events) + trace.left_out == len(events)
    assert trace.events["name"].cast(str).str.starts_with("good_").sum() == 30
    path.write_text(text[: len(text) - cut])
    shorter = read_trace(path)
    assert shorter.header.truncated == (len(text) - cut <= text.rindex("]"))
    assert shorter.events.equals(trace.events.head(len(shorter.events)))


@given(VALUES)
def test_numbers_are_whole_within_64_bits_or_none(value: Any) -> None:
    for number in (nanoseconds(value), whole(value)):
        assert number is None or (isinstance(number, int) and abs(number) < 2**62)
