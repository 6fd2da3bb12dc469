"""The numbers of real and made traces equal a brute-force read of the same JSON."""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from made_traces import BASE_NS, START_US, MadeTrace, engine_trace

from sglang_instrument.cli.main import main
from sglang_instrument.errors import LogError
from sglang_instrument.traces import file
from sglang_instrument.traces.answers import analyse, analyse_trace, find_traces
from sglang_instrument.traces.intervals import covered_ns, gaps, merged, time_within
from sglang_instrument.traces.kernels import category_of
from sglang_instrument.traces.table import KINDS, Trace, read_trace

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return engine_trace().write(tmp_path_factory.mktemp("made") / "17-TP-0.trace.json.gz")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace by torch's own profiler of some forward and backward passes on the CPU."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16))
    with profile(activities=[ProfilerActivity.CPU], with_stack=True, record_shapes=True) as profiler:
        for number in range(5):
            with record_function(f"step[DECODE bs={number + 1}]"):
                model(torch.randn(4, 16)).sum().backward()
    path = tmp_path_factory.mktemp("real") / "torch.trace.json"
    profiler.export_chrome_trace(str(path))
    return path


def loaded(path: Path) -> list[dict[str, Any]]:
    """Return the events that count, by json.load."""
    raw = path.read_bytes()
    whole = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    return [event for event in whole["traceEvents"] if event.get("cat") in KINDS and "dur" in event]


def union(intervals: list[tuple[float, float]]) -> float:
    """Return the time that intervals cover, counted unit by unit."""
    moments = sorted({moment for interval in intervals for moment in interval})
    return sum(
        b - a for a, b in pairwise(moments) if any(start <= a and b <= end for start, end in intervals)
    )


# reading


@needs_torch
def test_a_real_trace_is_read_event_by_event(real: Path) -> None:
    trace = read_trace(real)
    expected = loaded(real)
    assert len(trace.events) == len(expected) > 100
    assert trace.events["name"].cast(pl.String).to_list() == [event["name"] for event in expected]
    assert trace.events["kind"].cast(pl.String).to_list() == [KINDS[event["cat"]] for event in expected]
    lanes = [trace.lanes[lane] for lane in trace.events["lane"]]
    assert lanes == [(str(event["pid"]), str(event["tid"])) for event in expected]
    base = json.loads(real.read_text())["baseTimeNanoseconds"]
    for start, end, event in zip(trace.events["start_ns"], trace.events["end_ns"], expected, strict=True):
        assert start == base + round(event["ts"] * 1000)
        assert end - start == round(event["dur"] * 1000)
    assert trace.has_clock
    assert not trace.header.truncated
    assert len(read_trace(real, python=False).events) == sum(
        event["cat"] != "python_function" for event in expected
    )


@pytest.mark.parametrize("piece", [64, 700, 5000])
def test_pieces_end_where_events_end_whatever_their_size(
    made: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    whole = read_trace(made)
    monkeypatch.setattr(file, "PIECE_BYTES", piece)
    again = read_trace(made)
    assert again.events.equals(whole.events)
    assert again.header == whole.header
    assert (again.header.base_ns, again.header.devices) == (BASE_NS, ["NVIDIA Made 9000"])
    assert (again.header.rank, again.header.world_size, again.header.host) == (0, 2, "made")


def forms(events: list[dict[str, Any]]) -> dict[str, str]:
    """Return the same events in the forms that other tools write."""
    reordered = [dict(sorted(event.items())) for event in events]
    base = {"baseTimeNanoseconds": BASE_NS}
    return {
        "compact": json.dumps({**base, "traceEvents": events}, separators=(",", ":")),
        "sorted keys": json.dumps({**base, "traceEvents": reordered}, indent=1),
        "header last": json.dumps({"traceEvents": events, "deviceProperties": [], **base}),
        "list alone": json.dumps(events),
        "one event": json.dumps({**base, "traceEvents": events[:1]}),
        "no event": json.dumps({**base, "traceEvents": []}),
    }


@pytest.mark.parametrize("form", [*forms([{}])])
@pytest.mark.parametrize("piece", [100, 4096])
def test_other_forms_of_the_same_trace_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, piece: int
) -> None:
    monkeypatch.setattr(file, "PIECE_BYTES", piece)
    events = engine_trace().events
    path = tmp_path / "a.trace.json"
    path.write_text(forms(events)[form])
    trace = read_trace(path)
    count = {"one event": 1, "no event": 0}.get(form, len(events))
    assert len(trace.events) == count
    assert not trace.header.truncated
    assert trace.header.broken == 0
    if count:
        base = 0 if form == "list alone" else BASE_NS
        assert trace.events["start_ns"][0] == base + round(events[0]["ts"] * 1000)


def test_names_that_look_like_the_ends_of_events_do_not_split_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "PIECE_BYTES", 50)
    trace = MadeTrace()
    names = ['}, {"ph": "X"}', '},{"ph":', "]", '"]}', "\\", '{"ph"', "\u20ac \U0001f600", "], }"]
    for number, name in enumerate(names):
        trace.add("kernel", name, number, 1.0, args={"stream": 1, "nested": [{"ph": 1}, {"ph": 2}]})
    read = read_trace(trace.write(tmp_path / "odd.trace.json"))
    assert read.events["name"].cast(pl.String).to_list() == names
    assert (read.header.broken, read.header.truncated) == (0, False)


@pytest.mark.parametrize("packed", [True, False])
def test_a_file_cut_anywhere_gives_the_events_before_the_cut(tmp_path: Path, packed: bool) -> None:
    trace, drawn = engine_trace(), random.Random(5)
    for number in range(300):
        trace.add("cpu_op", f"aten::{drawn.random()}", 10_000 + number, drawn.random())
    whole = trace.write(tmp_path / ("w.trace.json.gz" if packed else "w.trace.json"))
    expected = read_trace(whole).events
    raw = whole.read_bytes()
    chosen = random.Random(7)
    for cut in sorted(chosen.randrange(len(raw) // 3, len(raw) - 40) for _ in range(25)):
        path = tmp_path / f"cut{'.json.gz' if packed else '.json'}"
        path.write_bytes(raw[:cut])
        read = read_trace(path)
        assert read.header.truncated
        assert read.header.broken == 0
        assert read.events.equals(expected.head(len(read.events)))
        assert len(read.events) > len(expected) * (cut / len(raw) - 0.3)


def test_a_file_cut_before_its_first_event_says_so(tmp_path: Path) -> None:
    path = tmp_path / "c.trace.json.gz"
    path.write_bytes(gzip.compress(b'{"schemaVersion": 1, "traceEvents": [')[:-12])
    with pytest.raises(LogError, match="cut short before its first event"):
        read_trace(path)


def test_a_broken_event_costs_no_other(tmp_path: Path) -> None:
    path = engine_trace().write(tmp_path / "b.trace.json")
    whole = len(read_trace(path).events)
    path.write_text(path.read_text().replace('"name": "aten::item"', '"name": "aten::it\x01em', 1))
    trace = read_trace(path)
    assert (len(trace.events), trace.header.broken) == (whole - 1, 1)


@pytest.mark.parametrize("text", ["", "hello", '{"a": 1}', "[1, 2]", "\x00" * 100])
def test_a_file_that_is_no_trace_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    if text == "[1, 2]":
        assert read_trace(path).events.is_empty()
        return
    with pytest.raises(LogError, match=r"x\.json: no torch profiler trace"):
        read_trace(path)


# time


def test_unions_gaps_and_overlaps_equal_a_count_of_instants() -> None:
    drawn = random.Random(3)
    for _ in range(30):
        spans = [(start, start + drawn.randrange(0, 9)) for start in (drawn.randrange(60) for _ in range(12))]
        table = pl.DataFrame(spans, schema={"start_ns": pl.Int64, "end_ns": pl.Int64}, orient="row")
        covered = {moment for start, end in spans for moment in range(start, end)}
        assert covered_ns(table) == len(covered)
        idle = gaps(table, 0, 80)
        assert {m for a, b in idle.iter_rows() for m in range(a, b)} == set(range(80)) - covered
        assert merged(table)["start_ns"].is_sorted()
        asked = pl.DataFrame({"start_ns": [5, 0, 30], "end_ns": [25, 80, 30]})
        within = time_within(asked, idle).to_list()
        assert within == [len(set(range(a, b)) - covered) for a, b in asked.iter_rows()]


def test_no_intervals_cover_nothing() -> None:
    none = pl.DataFrame(schema={"start_ns": pl.Int64, "end_ns": pl.Int64})
    assert covered_ns(none) == 0
    assert gaps(none).is_empty()
    assert time_within(pl.DataFrame({"start_ns": [1], "end_ns": [9]}), none).to_list() == [0]


# what a GPU did


def test_busy_idle_and_communication_alone_of_a_made_trace(made: Path) -> None:
    analysis = analyse(made).traces[0]
    events = [event for event in loaded(made) if event["cat"] in ("kernel", "gpu_memcpy")]
    spans = [(event["ts"], event["ts"] + event["dur"]) for event in events]
    comm = [span for span, event in zip(spans, events, strict=True) if "nccl" in event["name"]]
    compute = [
        span
        for span, event in zip(spans, events, strict=True)
        if event["cat"] == "kernel" and "nccl" not in event["name"]
    ]
    use = analysis.use
    assert analysis.window_sec == pytest.approx((8050 - 100) / 1e6)
    assert use["busy_sec"] * 1e6 == pytest.approx(union(spans)) == pytest.approx(120 + 3 * 70 + 50)
    assert use["idle_sec"] * 1e6 == pytest.approx(7950 - 380)
    assert use["compute_sec"] * 1e6 == pytest.approx(union(compute))
    assert use["communication_sec"] * 1e6 == pytest.approx(union(comm)) == pytest.approx(40)
    assert (
        use["communication_alone_sec"] * 1e6
        == pytest.approx(union(comm + compute) - union(compute))
        == pytest.approx(20)
    )
    assert use["copy_sec"] * 1e6 == pytest.approx(30)
    assert (analysis.rank, analysis.profile_id, analysis.devices) == ("TP-0", "17", ["NVIDIA Made 9000"])
    assert analysis.start_us == BASE_NS // 1000 + round(START_US) + 100


def test_kernels_categories_and_copies_of_a_made_trace(made: Path) -> None:
    tables = analyse(made).traces[0].tables
    kernels = {row["name"]: row for row in tables["kernels"]}
    assert kernels["flash_fwd_splitkv_kernel"]["count"] == 3
    assert kernels["flash_fwd_splitkv_kernel"]["total_sec"] * 1e6 == pytest.approx(120)
    assert tables["kernels"][0]["name"] == "flash_fwd_splitkv_kernel"
    shares = {row["category"]: row["share"] for row in tables["categories"]}
    assert shares["attention"] == pytest.approx(120 / 400)
    assert shares["gemm"] == pytest.approx(160 / 400)
    assert shares["communication"] == pytest.approx(40 / 400)
    assert sum(shares.values()) == pytest.approx(1.0)
    (copy,) = tables["copies"]
    assert (copy["count"], copy["bytes"]) == (3, 3_000_000)
    assert copy["gb_per_sec"] == pytest.approx(3_000_000 / 30e-6 / 1e9)
    streams = {row["stream"]: row["busy_sec"] * 1e6 for row in tables["streams"]}
    assert streams == {7: pytest.approx(360), 13: pytest.approx(40)}


def test_prefill_decode_and_graphs_of_a_made_trace(made: Path) -> None:
    tables = analyse(made).traces[0].tables
    stages = {row["stage"]: row for row in tables["stages"]}
    assert {name: row["steps"] for name, row in stages.items()} == {"prefill": 1, "decode": 3}
    assert stages["prefill"]["gpu_sec"] * 1e6 == pytest.approx(120)
    assert stages["decode"]["gpu_sec"] * 1e6 == pytest.approx(210)  # the last kernel is in no step
    assert stages["decode"]["p50_ms"] == pytest.approx(0.120)
    (graph,) = tables["graphs"]
    assert (graph["stage"], graph["launches"]) == ("decode", 3)
    assert graph["gpu_p50_ms"] == pytest.approx(0.060)
    assert graph["every_p50_ms"] == pytest.approx(1.0)
    assert graph["launch_p50_us"] == pytest.approx(30)


def test_a_gap_names_the_innermost_work_of_the_cpu_over_it(made: Path) -> None:
    tables = analyse(made).traces[0].tables
    longest = tables["gaps"][0]
    assert longest["duration_sec"] * 1e6 == pytest.approx(8000 - 3070)
    assert longest["at_sec"] * 1e6 == pytest.approx(2970)
    assert longest["cpu"] == "aten::_local_scalar_dense"
    assert longest["covered_share"] == pytest.approx(4880 / 4930)
    assert sum(row["total_sec"] for row in tables["gap_sizes"]) == pytest.approx(
        analyse(made).traces[0].use["idle_sec"]
    )


def test_a_stage_in_the_name_of_the_file_counts_where_nothing_was_marked(tmp_path: Path) -> None:
    trace = MadeTrace()
    trace.launch(0, "cudaLaunchKernel", [("kernel", "k", 10, 5, 7)])
    analysis = analyse(trace.write(tmp_path / "id-TP-1-DECODE.trace.json.gz")).traces[0]
    assert (analysis.rank, analysis.stage) == ("TP-1", "decode")
    assert [row["stage"] for row in analysis.tables["stages"]] == ["decode"]


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("void sglang::cross_device_reduce_1stage<__nv_bfloat16, 2>", "communication"),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN", "gemm"),
        ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<...> >", "attention"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>", "gemm"),
        ("fused_moe_kernel", "moe"),
        ("void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>", "norm"),
        ("void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu>", "activation"),
        ("void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel", "rope"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>", "elementwise"),
        (
            "_fwd_grouped_kernel_stage1",
            "attention",
        ),  # SGLang's Triton attention on an H200, and the next three
        ("_fwd_kernel_stage2", "attention"),
        ("_fwd_kernel", "attention"),
        ("_fwd_kernel_ep_scatter_1", "moe"),
        ("_qk_gemma_rmsnorm_rope_kernel", "norm"),
        (
            "void at::native::distribution_elementwise_grid_stride_kernel<float, 4, normal_and_transform>",
            "elementwise",
        ),
        ("triton_poi_fused_add_0", "triton"),
        ("my_own", "other"),
    ],
)
def test_kernels_are_sorted_by_what_they_do(name: str, category: str) -> None:
    assert category_of(name) == category


# what a CPU did


@needs_torch
def test_operators_of_a_real_trace_equal_a_brute_force_read(real: Path) -> None:
    analysis = analyse(real, top=10_000).traces[0]
    events = [event for event in loaded(real) if event["cat"] in ("cpu_op", "user_annotation")]
    for event in events:
        event["end"] = event["ts"] + event["dur"]
    totals: Counter[str] = Counter()
    self_times: Counter[str] = Counter()
    for event in events:
        inside = [
            (max(other["ts"], event["ts"]), min(other["end"], event["end"]))
            for other in events
            if other is not event
            and other["tid"] == event["tid"]
            and event["ts"] <= other["ts"]
            and other["end"] <= event["end"]
            and other["dur"] < event["dur"]
        ]
        totals[event["name"]] += event["dur"]
        self_times[event["name"]] += event["dur"] - union(inside)
    rows = {row["name"]: row for row in analysis.tables["cpu_ops"]}
    assert set(rows) == set(totals)
    for name, row in rows.items():
        assert row["total_sec"] * 1e6 == pytest.approx(totals[name], abs=0.1)
        assert row["without_nested_sec"] * 1e6 == pytest.approx(self_times[name], abs=1.0)
    assert not analysis.on_gpu
    (stage,) = analysis.tables["stages"]
    assert (stage["stage"], stage["steps"]) == ("decode", 5)
    marks = [(event["ts"], event["end"]) for event in events if event["name"].startswith("step[")]
    assert analysis.use["busy_sec"] * 1e6 == pytest.approx(union(marks), abs=0.1)


def test_own_times_equal_a_stack_of_open_events(tmp_path: Path) -> None:
    drawn = random.Random(11)
    trace = MadeTrace()
    self_times: Counter[str] = Counter()

    def grow(start: int, end: int, depth: int, thread: int) -> None:
        name = f"op{drawn.randrange(6)}"
        trace.add("cpu_op", name, start, end - start, tid=thread)
        self_times[name] += end - start
        while depth < 5 and start < end and drawn.random() < 0.7:
            begin = drawn.randint(start, end)
            stop = drawn.randint(begin, end)
            self_times[name] -= stop - begin
            if (begin, stop) == (start, end) or begin == stop:  # equal times: either may be outside
                trace.add("cpu_op", "moment", begin, 0, tid=thread)
                self_times[name] += stop - begin
            else:
                grow(begin, stop, depth + 1, thread)
            start = stop

    for thread in (1, 2, 3):
        for root in range(0, 5000, 500):
            grow(root, root + drawn.randint(1, 500), 0, thread)
    drawn.shuffle(trace.events)
    analysis = analyse(trace.write(tmp_path / "n.trace.json"), top=100).traces[0]
    rows = {row["name"]: row["without_nested_sec"] * 1e6 for row in analysis.tables["cpu_ops"]}
    assert rows.pop("moment", 0.0) == 0.0
    assert rows == pytest.approx({name: float(time) for name, time in self_times.items()}, abs=0.01)


# ranks


def two_ranks(folder: Path) -> Path:
    """Rank 1 computes twice as long; rank 0 waits for it in communication."""
    engine_trace(nccl_us=400, gemm_us=400).write(folder / "9-TP-0.trace.json.gz")
    engine_trace(nccl_us=40, gemm_us=800).write(folder / "9-TP-1.trace.json.gz")
    return folder


def test_the_rank_that_the_others_wait_for_is_named(tmp_path: Path) -> None:
    analysis = analyse(two_ranks(tmp_path))
    assert analysis.slow == "TP-1"
    assert "TP-1 is slow" in analysis.sentence
    assert [row["rank"] for row in analysis.ranks] == ["TP-0", "TP-1"]


def test_no_rank_is_named_if_all_are_alike_or_there_is_only_one(tmp_path: Path) -> None:
    for rank in (0, 1):
        engine_trace().write(tmp_path / f"9-TP-{rank}.trace.json.gz")
    analysis = analyse(tmp_path)
    assert (analysis.slow, "no rank stands out" in analysis.sentence) == (None, True)
    assert analyse(tmp_path, rank="TP-1").sentence == "one rank per engine: nothing to compare"


def test_ranks_of_different_engines_are_not_compared(tmp_path: Path) -> None:
    for worker, gemm in ((0, 100), (1, 900)):
        engine_trace(gemm_us=gemm).write(tmp_path / f"e-worker_{worker}-TP-0.trace.json.gz")
    analysis = analyse(tmp_path)
    assert (analysis.slow, analysis.sentence) == (None, "one rank per engine: nothing to compare")
    assert [trace.profile_id for trace in analysis.traces] == ["e-worker_0", "e-worker_1"]


def test_ranks_are_chosen_and_missing_ones_refused_with_those_that_are_there(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    assert [trace.rank for trace in analyse(tmp_path, rank="1").traces] == ["TP-1"]
    with pytest.raises(LogError, match="no trace of rank 5; there are: TP-0, TP-1"):
        analyse(tmp_path, rank="5")


def test_folders_are_searched_and_merged_files_left_out(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    trace = engine_trace()
    for name in ("deep/a-TP-0.trace.json.gz", "merged-a.trace.json.gz", "settings.json"):
        trace.write(tmp_path / name)
    assert [path.name for path in find_traces(tmp_path)] == ["a-TP-0.trace.json.gz"]
    with pytest.raises(LogError, match="is the profiler still running"):
        find_traces(_empty(tmp_path))
    with pytest.raises(LogError, match="no such file or folder"):
        find_traces(tmp_path / "nothing")


def _empty(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def test_an_empty_trace_is_analysed(tmp_path: Path) -> None:
    analysis = analyse_trace(read_trace(MadeTrace().write(tmp_path / "n.trace.json")))
    assert isinstance(read_trace(tmp_path / "n.trace.json"), Trace)
    assert (analysis.window_sec, analysis.use["busy_share"], analysis.start_us) == (0.0, 0.0, None)


# the command


def test_trace_prints_tables_and_the_same_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    two_ranks(tmp_path)
    assert main(["trace", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for words in ("TP-1 is slow", "flash_fwd_splitkv_kernel", "aten::_local_scalar_dense", "CUDA graphs"):
        assert words in shown
    assert "TP-1 of 2 traces" not in shown  # two fit
    assert main(["trace", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == {"folder", "slow", "sentence", "ranks", "traces", "steps", "unreadable"}
    assert [trace["rank"] for trace in answer["traces"]] == ["TP-0", "TP-1"]
    assert {"use", "kernels", "gaps", "graphs", "streams", "copies"} <= set(answer["traces"][0])


def test_a_file_that_is_no_trace_costs_no_other_and_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    two_ranks(tmp_path)
    (tmp_path / "9-TP-2.trace.json.gz").write_bytes(b"")
    assert main(["trace", str(tmp_path), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert [trace["rank"] for trace in answer["traces"]] == ["TP-0", "TP-1"]
    assert list(answer["unreadable"]) == [str(tmp_path / "9-TP-2.trace.json.gz")]


def test_a_cut_trace_is_analysed_and_said_to_be_cut(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = engine_trace().write(tmp_path / "c-TP-0.trace.json")
    path.write_bytes(path.read_bytes()[:-600])
    assert main(["trace", str(path)]) == 0
    assert "the file is cut short" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("x", "--top", "0"), "--top must be at least 1"),
        (("no-such-folder",), "no such file or folder"),
    ],
)
def test_a_wrong_request_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], error: str
) -> None:
    assert main(["trace", *arguments]) == 2
    assert error in capsys.readouterr().err
