"""Servers' and trainers' lines of any shape: no traceback, and each line is a row or counted as misread."""

import resource
import time

import polars as pl
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from server_lines import begin, decode

from sglang_instrument.analysis.foreign import verl_console
from sglang_instrument.analysis.foreign.records.console_steps import console_steps
from sglang_instrument.analysis.foreign.records.metric_parts import StepTimes, step_rows
from sglang_instrument.analysis.foreign.sglang import server_logs, slots

NUMBERS = st.one_of(
    st.integers(0, 5000).map(str),
    st.floats(0, 5000).map("{:.2f}".format),
    st.sampled_from(["-1", "0", "0.00", "nan", "inf", "9" * 30, "1e9", "", "True", "\u0664", "\x1b[31m7"]),
)
STAMPS = st.one_of(
    st.integers(0, 9000).map(lambda sec: begin(sec)),
    st.sampled_from(
        [
            "",
            "[yesterday] ",
            "[2026-13-45 99:99:99 TP0] ",
            "[0000-00-00 00:00:00] ",
            "[9999-12-31 23:59:59 TP0] ",
            "[08:00:01 TP0] ",
            "Feb 30 08:00:00 host unit[1]: ",
            "2026-01-05T08:00:00+99:99 ",
            '{"log":"',
            "(Engine pid=99999999999) [2026-01-05 08:00:09 DP99999999 TP0] ",
            "((((pid=1) ",
            "[pod/] [2026-01-05 08:00:07 DP0 TP0] ",
        ]
    ),
)
PAIRS = st.dictionaries(
    st.sampled_from(
        [
            "#running-req",
            "gen throughput (token/s)",
            "#queue-req",
            "accept len",
            "#new-seq",
            "file",
            "stamp",
            "worker",
            "start_us",
            "event",
            "#odd (thing)/x",
        ]
    ),
    NUMBERS,
    max_size=7,
)
KINDS = st.sampled_from(
    ["Decode batch, ", "Prefill batch, ", "Decode batch [7], ", "Decode batch", "Decode batches "]
)
ENDS = st.sampled_from(
    ["", " [repeated 9x across cluster]", " [repeated x across cluster]", '\\n","stream":"stderr"}']
)
BATCHES = st.builds(
    lambda stamp, kind, pairs, end: (
        stamp + kind + ", ".join(f"{name}: {value}" for name, value in pairs.items()) + end
    ),
    STAMPS,
    KINDS,
    PAIRS,
    ENDS,
)
OTHERS = st.builds(
    lambda stamp, text: stamp + text,
    STAMPS,
    st.sampled_from(
        [
            "KV cache pool is full. Retract requests. #retracted_reqs: 99999999999",
            "Finish: obj=GenerateReqInput(), out={'meta_info': {'id': 'a', 'e2e_latency': 1e300}}",
            "Finish: obj=X, out={'meta_info': {'id': 'b', 'completion_tokens': 7, 'e2e_latency': 1.5}}",
            "server_args=ServerArgs(decode_log_interval=0)",
            "step:3 - timing_s/gen:1.5 - timing_s/step:2.0",
            "step:4 - timing_s/gen:np.float64(nan) - timing_s/a/b:1",
            "INFO: Started",
        ]
    ),
)


@settings(max_examples=50, phases=[Phase.generate])
@given(st.lists(st.one_of(BATCHES, BATCHES, OTHERS), max_size=25), st.booleans())
def test_each_line_about_a_batch_is_a_row_or_misread(tmp_path_factory, lines, steady):
    if steady:
        lines = [*lines, *(begin(sec) + decode() for sec in range(5))]
    path = tmp_path_factory.mktemp("fuzz") / "server.log"
    path.write_text("\n".join(lines) + "\n", errors="replace")
    log = server_logs.read([path])
    rows = log.rows.filter(pl.col("event").cast(pl.String) == "scheduler_batch")
    about = [line for line in lines if "Decode batch" in line or "Prefill batch" in line]
    timeless = [line for line in about if "Decode batches" in line]
    # A line of decode without its numbers is both: an instant event, and misread.
    assert len(rows) <= len(about)
    assert len(about) - len(timeless) <= len(rows) + log.rejects.foreign
    spans = log.rows.drop_nulls("duration_sec")
    assert (spans["end_us"] >= spans["start_us"]).all()
    assert (log.rows["response_tokens"].drop_nulls() >= 0).all()
    assert server_logs.claims(path, path.read_bytes()[:65536]) or not about


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(["gen", "step", "reshard", "a", "b/max", "agent_loop/slowest/x", "c d"]), NUMBERS
    )
)
def test_parts_of_any_values_lie_within_their_step(metrics):
    line = "step:1 - " + " - ".join(f"timing_s/{name}:{value}" for name, value in metrics.items())
    steps = console_steps([line])
    rows = step_rows(steps, [0] * len(steps))
    if steps:
        ends = dict(rows.filter(event="trainer_step").select("step", "end_us").iter_rows())
        assert (rows["start_us"] >= 0).all()
        assert rows.filter(pl.col("event") == "trainer_step").height == len(steps) == len(ends)


@given(
    st.dictionaries(
        st.text(max_size=9).map("timing_s/{}".format), st.one_of(st.none(), st.floats(), st.text())
    )
)
def test_metrics_of_any_values_are_parts_or_left_out(metrics):
    step = StepTimes()
    step.add(metrics)
    assert len(step.parts) + len(step.left_out) + len(step.slowest) == len(metrics)


def test_a_hostile_log_takes_bounded_memory_and_time(tmp_path, monkeypatch):
    """As many slots as there can be, in turns: without a bound, a line of 100 bytes makes 4,096 rows."""
    monkeypatch.setattr(slots, "MOST_ROWS", 50_000)
    path = tmp_path / "server.log"
    lines = [begin(number) + decode(4096 if number % 2 else 1, 9000.0) for number in range(2000)]
    path.write_text("\n".join(lines) + "\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.process_time()
    log = server_logs.read([path])
    assert time.process_time() - begun < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # kB
    assert len(log.rows) <= 2 * 50_000 + len(lines)
    assert any("slots beyond" in phrase for phrase in log.cannot_show)


def test_a_file_of_zeros_is_no_log(tmp_path):
    path = tmp_path / "core.log"
    path.write_bytes(b"\0" * 2**20)
    head = path.read_bytes()[:65536]
    assert not server_logs.claims(path, head)
    assert not verl_console.claims(path, head)
