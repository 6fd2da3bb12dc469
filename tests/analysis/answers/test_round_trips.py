"""The clock offsets that round trips give equal those of a brute-force computation."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_traces import START_US, MadeTrace
from perfetto_tracks import group_of, parsed

from sglang_instrument.analysis import open_run, process_clocks, round_trip_table
from sglang_instrument.analysis.answers.engine.join import engine_request_table
from sglang_instrument.analysis.answers.engine.round_trips import ahead_us
from sglang_instrument.cli.main import main
from sglang_instrument.report.html.chosen import Chosen
from sglang_instrument.report.html.spans import pack_step

EPOCH_US = 1_795_000_000_000_000
DAY_US = 86_400_000_000


@dataclass
class Process:
    """A process with a clock that is ahead by `skew_us`, on a host that booted at `booted_us`."""

    folder: Path
    path: str
    skew_us: int = 0
    host: str | None = None
    booted_us: int = DAY_US

    def write(self, event: str, start_us: int, end_us: int, **extra: object) -> None:
        """Write a span; its times are true seconds since the run began, and logged by the process's clock."""
        file = self.folder / self.path
        file.parent.mkdir(parents=True, exist_ok=True)
        error = {"error": extra.pop("error")} if "error" in extra else {}
        lines = [] if file.exists() else [self._opened()]
        start = EPOCH_US + self.skew_us + start_us
        times = {"duration_sec": (end_us - start_us) / 1e6, "start_us": start, "task": 0}
        stamp = "2026-11-20T19:36:11.133688+00:00"
        lines.append({"timestamp": stamp, "event": event, "extra": extra, **times, **error})
        with file.open("a") as stream:
            stream.writelines(json.dumps(line) + "\n" for line in lines)

    def _opened(self) -> dict[str, object]:
        wall = EPOCH_US + self.skew_us
        clocks = {"host": self.host, "wall_ns": wall * 1000, "perf_ns": self.booted_us * 1000}
        known = clocks if self.host else {}
        extra = {"log_version": 1, "run_id": "now", "pid": 1, **known}
        return {"timestamp": "2026-11-20T19:36:11.133688+00:00", "event": "log_opened", "extra": extra}


def call(client: Process, server: Process, rid: str, times: tuple[int, int, int, int]) -> None:
    """Write a call from times[0] to times[3], on which the server works from times[1] to times[2]."""
    client.write("engine_generate", times[0], times[3], rid=rid, request_id=f"r-{rid}", turn=0)
    server.write("engine_request", times[1], times[2], rid=rid)


def pair(folder: Path) -> dict[str, object]:
    """Return the only row."""
    (row,) = round_trip_table(open_run(folder, cached=False)).to_dicts()
    return row


moments = st.lists(st.integers(0, 60_000_000), min_size=4, max_size=4).map(sorted)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), moments), min_size=1, max_size=12),
    st.lists(st.integers(-5_000_000_000, 5_000_000_000), min_size=5, max_size=5),
)
def test_an_offset_is_the_middle_of_the_bounds_of_all_calls(calls, skews) -> None:
    with TemporaryDirectory() as folder:
        run = Path(folder)
        clients = [Process(run, f"step_1/worker_{n}.jsonl", skews[n]) for n in range(3)]
        servers = [Process(run, f"engine/server_{n}.jsonl", skews[3 + n]) for n in range(2)]
        left: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for number, (client, server, times) in enumerate(calls):
            call(clients[client], servers[server], f"a{number}", tuple(times))
            skew = skews[3 + server] - skews[client]
            # How far the server's span can be moved within its call, if both are on one clock.
            slack = (skew - (times[3] - times[2]), skew + (times[1] - times[0]))
            left.setdefault((client, server), []).append(slack)
        rows = round_trip_table(open_run(run, cached=False)).to_dicts()
        by_pair = {(row["client"], row["server"]): row for row in rows}
    assert set(by_pair) == {(f"worker_{client}", f"server_{server}") for client, server in left}
    for (client, server), slacks in left.items():
        row = by_pair[f"worker_{client}", f"server_{server}"]
        low, high = max(low for low, _ in slacks), min(high for _, high in slacks)
        true = (skews[3 + server] - skews[client]) / 1e6
        assert row["calls"] == len(slacks)
        assert (row["ahead_at_least_sec"], row["ahead_at_most_sec"]) == pytest.approx(
            (low / 1e6, high / 1e6), abs=3e-6
        )
        assert abs(row["offset_sec"] - true) <= row["residual_sec"] + 3e-6
        assert row["residual_sec"] == pytest.approx((high - low) / 2e6, abs=3e-6)


def test_the_worked_example_of_the_docs(tmp_path: Path) -> None:
    client = Process(tmp_path, "step_1/worker_0.jsonl")
    server = Process(tmp_path, "engine/server_0.jsonl", 3_000_000)
    call(client, server, "a", (10_000_000, 10_002_000, 11_990_000, 12_000_000))
    call(client, server, "b", (20_000_000, 20_012_000, 20_996_000, 21_000_000))
    row = pair(tmp_path)
    assert (row["ahead_at_least_sec"], row["ahead_at_most_sec"]) == pytest.approx((2.996, 3.002))
    assert (row["offset_sec"], row["residual_sec"]) == pytest.approx((2.999, 0.003))


def test_processes_of_one_host_and_one_anchor_have_one_clock(tmp_path: Path) -> None:
    client = Process(tmp_path, "step_1/worker_0.jsonl", host="vm")
    call(client, Process(tmp_path, "engine/server_0.jsonl", host="vm"), "a", (0, 10, 20, 9_000_000))
    row = pair(tmp_path)
    assert (row["same_clock"], row["offset_sec"], row["residual_sec"]) == (True, 0.0, 0.0)
    assert ahead_us(open_run(tmp_path)) == {}


def test_two_hosts_of_one_name_are_told_apart_by_their_anchors(tmp_path: Path) -> None:
    client = Process(tmp_path, "step_1/worker_0.jsonl", host="localhost")
    server = Process(tmp_path, "engine/server_0.jsonl", 2_000_000, host="localhost", booted_us=5 * DAY_US)
    call(client, server, "a", (0, 1_000, 2_000, 3_000))
    row = pair(tmp_path)
    assert (row["same_clock"], row["offset_sec"]) == (False, pytest.approx(2.0))


def test_aborted_and_repeated_calls_give_no_bounds(tmp_path: Path) -> None:
    client = Process(tmp_path, "step_1/worker_0.jsonl")
    server = Process(tmp_path, "engine/server_0.jsonl")
    client.write("engine_generate", 0, 1_000_000, rid="gone", request_id="r0", error="TimeoutError")
    server.write("engine_request", 10, 50_000_000, rid="gone")
    for start in (0, 80_000_000):  # resumed under its name
        call(client, server, "twice", (start, start + 10, start + 20, start + 1_000_000))
    assert round_trip_table(open_run(tmp_path, cached=False)).is_empty()


def test_what_cannot_be_read_costs_no_other_pair(tmp_path: Path) -> None:
    client = Process(tmp_path, "step_1/worker_0.jsonl")
    call(client, Process(tmp_path, "engine/server_0.jsonl", 2_000_000), "a", (0, 1_000, 2_000, 3_000))
    for name in ("engine/server_1.jsonl.zst", "step_2/worker_0.jsonl.zst"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"no zstandard")
    assert pair(tmp_path)["offset_sec"] == pytest.approx(2.0)
    main(["check", str(tmp_path)])


def test_only_the_start_of_a_batch_or_a_stream_certainly_lies_within_the_call(tmp_path: Path) -> None:
    client = Process(tmp_path, "step_1/worker_0.jsonl")
    server = Process(tmp_path, "engine/server_0.jsonl")
    client.write("engine_generate", 0, 1_000_000, rid="a", request_id="r0")
    server.write("engine_stream", 400_000, 9_000_000, rid="a")
    server.write("engine_detokenize", 900_000, 9_000_000, rids=["a", "b"])
    row = pair(tmp_path)
    assert (row["ahead_at_least_sec"], row["ahead_at_most_sec"]) == pytest.approx((-0.1, 0.4))


def test_a_clock_that_was_set_meanwhile_is_reported(tmp_path: Path, capsys) -> None:
    client = Process(tmp_path, "step_1/worker_0.jsonl")
    server = Process(tmp_path, "engine/server_0.jsonl")
    call(client, server, "a", (0, 10, 20, 1_000))
    server.skew_us = 60_000_000
    call(client, server, "b", (5_000_000, 5_000_010, 5_000_020, 5_001_000))
    row = pair(tmp_path)
    assert row["ahead_at_least_sec"] > row["ahead_at_most_sec"]
    assert row["residual_sec"] == pytest.approx(30, abs=0.01)
    main(["check", str(tmp_path)])
    assert "no constant offset fits the 2 round trips of worker_0 and server_0" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.fixture
def skewed(tmp_path: Path) -> Path:
    """Two workers on different hosts, 10 s apart; a server and scheduler 100 s ahead of the first.

    There are no barriers: the workers are aligned through the server that both call.
    """
    run = tmp_path / "exp"
    workers = [Process(run, f"step_{step}/worker_0.jsonl", 0, "one") for step in (1, 2)]
    other = Process(run, "step_1/worker_1.jsonl", -10_000_000, "two")
    server = Process(run, "engine/server_0.jsonl", 100_000_000, "three")
    scheduler = Process(run, "engine/scheduler_0_tp0.jsonl", 100_000_000, "three")
    for number, begin in enumerate((1_000_000, 41_000_000)):
        step = workers[number]
        step.write("total_step_duration", begin - 1_000_000, begin + 20_000_000)
        call(step, server, f"s{number}", (begin, begin + 2_000, begin + 9_990_000, begin + 10_000_000))
        scheduler.write("scheduler_receive", begin + 3_000, begin + 3_100, rid=f"s{number}")
    other.write("total_step_duration", 0, 20_000_000)
    call(other, server, "o", (1_000_000, 1_004_000, 9_000_000, 9_006_000))
    return run


def test_clocks_are_followed_from_process_to_process(skewed: Path) -> None:
    clocks = {row["process"]: row for row in process_clocks(open_run(skewed, cached=False)).to_dicts()}
    true = {"worker_0": 0, "worker_1": -10, "server_0": 100, "scheduler_0_tp0": 100}
    assert {name: row["offset_sec"] for name, row in clocks.items()} == pytest.approx(true, abs=0.011)
    for name, row in clocks.items():
        assert abs(row["offset_sec"] - true[name]) <= row["residual_sec"] + 1e-5
    assert clocks["worker_0"]["by"] == "reference"
    assert clocks["scheduler_0_tp0"]["by"] == "same clock as server_0"
    assert clocks["worker_1"]["by"] == "round trips of server_0"


def test_requests_of_the_engine_are_placed_in_the_step_of_their_time(skewed: Path) -> None:
    # On its own clock, each would be after the start of step 2.
    lives = engine_request_table(open_run(skewed, cached=False)).to_dicts()
    assert {life["rid"]: life["step"] for life in lives} == {"s0": 1, "o": 1, "s1": 2}


def test_check_prints_whose_clock_differs(skewed: Path, capsys) -> None:
    main(["check", str(skewed)])
    said = " ".join(capsys.readouterr().out.split())
    assert "the clock of server_0 differs from that of worker_0 by +99.996 s +- 0.006 s, measured" in said
    assert "by round trips of" in said
    assert "worker_0; the same clock: scheduler_0_tp0" in said
    main(["workers", str(skewed), "--json"])
    rows = json.loads(capsys.readouterr().out)["round_trips"]
    assert [(row["client"], row["server"], row["calls"]) for row in rows] == [
        ("worker_0", "scheduler_0_tp0", 2),
        ("worker_0", "server_0", 2),
        ("worker_1", "server_0", 1),
    ]


def test_in_perfetto_the_servers_work_lies_inside_of_the_call(skewed: Path, capsys) -> None:
    trace = skewed.parent / "t"
    assert main(["export", str(skewed), "--perfetto", str(trace)]) == 0
    assert "clocks were aligned: " in capsys.readouterr().out
    tracks = parsed(trace)
    slices = [
        (group_of(track, tracks).name, name, start, end)
        for track in tracks.values()
        for name, start, end, *_ in track.slices
    ]
    calls = [span for span in slices if span[1] == "engine_generate"]
    works = [span for span in slices if span[1] == "engine_request"]
    assert len(calls) == len(works) == 3
    for _, _, start, end in works:
        around = [span for span in calls if span[2] - 12e6 <= start and end <= span[3] + 12e6]
        assert around


def test_traces_of_a_host_are_moved_with_its_processes(skewed: Path, capsys) -> None:
    made = MadeTrace()
    made.launch(2e6, "cudaLaunchKernel", [("kernel", "gemm", 3e6, 5e6, 7)])
    made.launch(9e6, "cudaLaunchKernel", [("kernel", "gemm", 10e6, 0.5e6, 7)])
    base_ns = (EPOCH_US + 100_000_000 - round(START_US)) * 1000
    trace = made.write(
        skewed.parent / "worker_0-TP-0.trace.json", baseTimeNanoseconds=base_ns, host_name="three"
    )
    assert main(["trace", str(trace), "--run", str(skewed), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["traces"][0]["host"] == "three"
    assert [(row["step"], row["worker"]) for row in answer["steps"]] == [(1, 0)]
    assert answer["steps"][0]["overlap_sec"] == pytest.approx(7.5)
    assert answer["steps"][0]["idle_share"] == pytest.approx(2 / 7.5, abs=1e-3)
    out = skewed.parent / "merged"
    assert main(["export", str(skewed), "--perfetto", str(out), "--traces", str(trace)]) == 0
    slices = [span for track in parsed(out).values() for span in track.slices]
    kernels = sorted(start - EPOCH_US * 1000 for name, start, *_ in slices if name == "gemm")
    assert kernels == pytest.approx([3e9, 10e9], abs=0.012e9)


def test_the_report_lays_workers_without_barriers_on_one_clock(tmp_path: Path) -> None:
    server = Process(tmp_path, "engine/server_0.jsonl")
    for rank, skew_sec in enumerate((0, 40)):
        client = Process(tmp_path, f"step_1/worker_{rank}.jsonl", skew_sec * 1_000_000)
        client.write("total_step_duration", 0, 4_000_000)
        for number in range(3 - rank):  # worker 0 calls most often: its clock is the reference
            begun = 1_000_000 * number
            times = (begun, begun + 1_000, begun + 998_000, begun + 999_000)
            call(client, server, f"{rank}-{number}", times)
    run = open_run(tmp_path, cached=False)
    assert ahead_us(run).keys() == {"worker_1"}
    raw, _ = pack_step(run, Chosen(validate=False, step=1), ahead_us(run))
    header = json.loads(raw[4 : 4 + int.from_bytes(raw[:4], sys.byteorder)])
    assert header["moved"] == ["worker_1"]
    assert header["extent_sec"] == pytest.approx(4.0, abs=0.01)
