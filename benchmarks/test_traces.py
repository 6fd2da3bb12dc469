"""Measure `trace` on a large trace, relative to json.load and a loop in Python."""

import json
import os
import random
import subprocess
import sys

import pytest
from rounds import HERE, ROUNDS, Spread, save, table

SIZE_MB = int(os.environ.get("BENCH_TRACE_MB", "1024"))
ROUNDS = min(ROUNDS, 3)  # the plain way takes most of a minute, and ten times the file in memory
TIMES = 5.0
PEAK_MB = 1000
KERNELS = [f"void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_{number}>" for number in range(60)]


#: Events as torch's profiler writes them: indented, a key a line.
MARK = """  {{
    "ph": "X", "cat": "user_annotation", "name": "step[DECODE bs=8]", "pid": 4711, "tid": 4711,
    "ts": {begun:.3f}, "dur": {took:.3f},
    "args": {{
      "External id": {number}, "Ev Idx": {number}
    }}
  }}"""
WORK = """  {{
    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 4711, "tid": 4711,
    "ts": {now:.3f}, "dur": 9.000,
    "args": {{
      "External id": {number}, "Sequence number": {number}, "Fwd thread id": 0, "Ev Idx": {number},
      "Input Dims": [[8, 4096], [4096, 4096]], "Input type": ["c10::BFloat16", "c10::BFloat16"]
    }}
  }},
  {{
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4711, "tid": 4711,
    "ts": {called:.3f}, "dur": 5.000,
    "args": {{
      "External id": {number}, "cbid": 211, "correlation": {number}
    }}
  }},
  {{
    "ph": "X", "cat": "kernel", "name": "{kernel}", "pid": 0, "tid": 7,
    "ts": {at:.3f}, "dur": {took:.3f},
    "args": {{
      "External id": {number}, "device": 0, "context": 1, "stream": 7, "correlation": {number},
      "registers per thread": 64, "shared memory": 49152, "blocks per SM": 0.969697, "warps per SM": 7.757576,
      "grid": [128, 1, 1], "block": [256, 1, 1], "est. achieved occupancy %": 12
    }}
  }}"""


def steps(drawn):
    """Yield decode steps of an engine: an annotation with operators, launches and kernels, by time."""
    now, number = 4_411_415_000_000.0, 0
    while True:
        begun, events = now, [""]
        for _ in range(100):
            number += 1
            kernel, took = drawn.choice(KERNELS), 5 + 20 * drawn.random()
            times = {"now": now, "called": now + 2, "at": now + 20, "took": took}
            events.append(WORK.format(number=number, kernel=kernel, **times))
            now += 10 + 25 * drawn.random()
        events[0] = MARK.format(begun=begun, took=now - begun, number=number)
        yield ",\n".join(events)
        now += 300 * drawn.random()


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "big-TP-0.trace.json"
    made = steps(random.Random(1))
    with path.open("w") as file:
        file.write(
            '{\n  "schemaVersion": 1,\n  "baseTimeNanoseconds": 1790857026000000000,\n  "traceEvents": [\n'
        )
        file.write(next(made))
        while file.tell() < SIZE_MB * 2**20:
            file.writelines(",\n" + next(made) for _ in range(200))
        file.write('\n  ],\n  "traceName": "big"\n}\n')
    return path


def cost(how, path):
    command = [sys.executable, str(HERE / "tracing.py"), how, str(path)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_a_large_trace_is_analysed_in_a_fraction_of_the_time_and_memory(trace, show):
    rounds = [{how: cost(how, trace) for how in ("plain", "ours")} for _ in range(ROUNDS)]
    for costs in rounds:
        assert costs["ours"]["events"] == costs["plain"]["events"]
        assert costs["ours"]["busy_sec"] == pytest.approx(costs["plain"]["busy_sec"], rel=1e-6)
    times = Spread.of([costs["plain"]["wall_sec"] / costs["ours"]["wall_sec"] for costs in rounds])
    rows = [
        (
            how,
            f"{min(costs[how]['wall_sec'] for costs in rounds):.1f}",
            f"{max(costs[how]['peak_mb'] for costs in rounds):.0f}",
        )
        for how in ("plain", "ours")
    ]
    size = trace.stat().st_size / 2**20
    title = f"{size:.0f} MB, {rounds[0]['ours']['events']:,} events: {times.median:.1f} times faster"
    show(table(f"{title} ({times.low:.1f} .. {times.high:.1f})", ("", "best s", "peak MB"), rows))
    save("traces", rows, rounds=rounds)
    assert max(costs["ours"]["peak_mb"] for costs in rounds) <= PEAK_MB
    assert times.median >= TIMES
