"""Make small traces of an engine on a GPU, in the format of torch's profiler, without a GPU."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BASE_NS = 1_790_857_026_000_000_000
START_US = 4_411_415_000_000.0  # of the first event, after BASE_NS
BEGIN_US = BASE_NS // 1000 + round(START_US)
SCHEDULER, GPU = 4711, 0


@dataclass
class MadeTrace:
    """A trace to add events to; times are microseconds after its start."""

    events: list[dict[str, Any]] = field(default_factory=list)
    correlations: int = 0

    def add(self, cat: str, name: str, ts: float, dur: float, **more: Any) -> None:
        event = {"ph": "X", "cat": cat, "name": name, "pid": SCHEDULER, "tid": SCHEDULER}
        self.events.append({**event, "ts": START_US + ts, "dur": dur, **more})

    def launch(
        self, ts: float, call: str, work: list[tuple[str, str, float, float, int]], dur: float = 5.0
    ) -> None:
        """Add a CUDA runtime call, and the work that it launches: (category, name, ts, dur, stream)."""
        self.correlations += 1
        link = {"correlation": self.correlations}
        self.add("cuda_runtime", call, ts, dur, args={"External id": 1, **link})
        for cat, name, start, took, stream in work:
            args = {"device": 0, "context": 1, "stream": stream, **link}
            if cat == "gpu_memcpy":
                args |= {"bytes": 1_000_000, "memory bandwidth (GB/s)": 10.0}
            self.add(cat, name, start, took, pid=GPU, tid=stream, args=args)

    def write(self, path: Path, **header: Any) -> Path:
        whole = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA Made 9000", "totalGlobalMem": 1}],
            "distributedInfo": {
                "backend": "nccl",
                "rank": 0,
                "world_size": 2,
                "pg_config": [{"ranks": [0, 1]}],
            },
            "host_name": "made",
            "baseTimeNanoseconds": BASE_NS,
            "traceEvents": [
                {
                    "ph": "M",
                    "name": "process_name",
                    "pid": SCHEDULER,
                    "tid": 0,
                    "args": {"name": "scheduler"},
                },
                *self.events,
                {"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": START_US, "cat": "ac2g", "name": "ac2g"},
            ],
            "traceName": str(path),
            **header,
        }
        text = json.dumps(whole, indent=2)
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
        return path


def engine_trace(nccl_us: float = 40.0, gemm_us: float = 100.0) -> MadeTrace:
    """A prefill, three decode steps by a CUDA graph, a copy, communication half hidden, and an idle time.

    Within a step, with the defaults:

        prefill   gemm 100..200, nccl 180..220 on another stream: 20 hidden, 20 exposed
        decode n  graph of attention and gemm, 1000 n .. 1000 n + 60, a copy of 10 after it
        idle      from 3070 to 8000, under a CPU operator; then one more kernel of 50
    """
    trace = MadeTrace()
    trace.add("user_annotation", "step[EXTEND bs=2 toks=64]", 0, 150)
    gemm, comm = (
        ("kernel", "nvjet_tst_128x64_gemm", 100, gemm_us, 7),
        ("kernel", "ncclDevKernel_AllReduce", 100 + gemm_us - 20, nccl_us, 13),
    )
    trace.launch(10, "cudaLaunchKernel", [gemm])
    trace.launch(20, "cudaLaunchKernel", [comm])
    for step in (1, 2, 3):
        start = step * 1000
        trace.add("user_annotation", "step[DECODE bs=2]", start - 100, 120)
        trace.launch(
            start - 50,
            "cudaGraphLaunch",
            [
                ("kernel", "flash_fwd_splitkv_kernel", start, 40, 7),
                ("kernel", "cutlass_gemm_bf16", start + 40, 20, 7),
            ],
            dur=30,
        )
        trace.launch(
            start - 10,
            "cudaMemcpyAsync",
            [("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", start + 60, 10, 7)],
        )
    trace.add("cpu_op", "aten::item", 3080, 4900)
    trace.add("cpu_op", "aten::_local_scalar_dense", 3090, 4880)
    trace.add("python_function", "scheduler.py(1): process_batch_result", 3000, 5000)
    trace.launch(7990, "cudaLaunchKernel", [("kernel", "vectorized_elementwise_kernel", 8000, 50, 7)])
    trace.add(
        "gpu_user_annotation", "step[DECODE bs=2]", 1000, 60, pid=GPU, tid=7, args={"stream": 7, "device": 0}
    )
    return trace


def trace_of_work(path: Path, busy: list[tuple[float, float]]) -> Path:
    """A trace whose GPU works in these seconds."""
    trace = MadeTrace()
    for start, end in busy:
        work = [("kernel", "gemm", start * 1e6, (end - start) * 1e6, 7)]
        trace.launch(start * 1e6 - 10, "cudaLaunchKernel", work)
    return trace.write(path)


def run_beside(folder: Path) -> Path:
    """A run of one worker: a step of 10 s, two requests wait for tools from 4 s to 8 s, a third ends."""

    def line(event: str, start: float, end: float, task: int, request: str | None = None) -> str:
        record: dict[str, Any] = {"timestamp": "2026-11-21T08:00:00+00:00", "event": event}
        record |= {"duration_sec": end - start}
        if request is not None:
            record["extra"] = {"request_id": request, "turn": 0}
        record |= {"workid": 0, "step": 6, "start_us": BEGIN_US + round(start * 1e6), "task": task}
        return json.dumps(record) + "\n"

    lines = [line("total_step_duration", 0, 10, 0)]
    lines.append(line("tool_execution", 5, 7, 9, "a"))  # concurrent with the other: the waiting counts once
    for task, request in ((1, "a"), (2, "b")):
        lines.append(line("async_rollout_request_complete", 0, 10, task, request))
        lines.append(line("turn_engine_call", 0, 4, task, request))
        lines.append(line("tool_execution", 4, 8, task, request))
        lines.append(line("turn_engine_call", 8, 10, task, request))
    lines.append(line("async_rollout_request_complete", 0, 4, 3, "c"))
    lines.append(line("turn_engine_call", 0, 4, 3, "c"))
    log = folder / "step_6" / "worker_0.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("".join(lines))
    return folder
