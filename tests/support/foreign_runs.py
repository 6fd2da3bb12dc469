"""Write one planted run in the formats of other projects, by writers of our own that follow these formats.

`tests/trainers` and `tests/engine` hold the readers against what the real projects write.
"""

import json
import os
import pickle
import sqlite3
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sglang_instrument.testing.causes import SlowEngine
from sglang_instrument.testing.run_shape import PlayedStep, RunShape, play_run
from sglang_instrument.testing.simulation.log_files import EPOCH_US
from sglang_instrument.testing.usual_run import usual_shape

#: The step, of those numbered from 0, in which the engine is slow.
SLOW = 5
EPOCH = EPOCH_US / 1e6


@dataclass
class Call:
    """A call of the engine; times are Unix seconds."""

    start: float
    end: float
    prompt_tokens: int
    tokens: int


@dataclass
class Request:
    """A request as it happened; times are Unix seconds."""

    id: str
    step: int
    worker: int
    start: float
    end: float
    finish: str
    reward: float
    tokens: int
    calls: list[Call] = field(default_factory=list)
    tools: list[tuple[str, float, float]] = field(default_factory=list)
    scored: tuple[float, float] = (0.0, 0.0)


def planted(
    seed: int = 3, shape: RunShape | None = None, causes: Sequence[Any] | None = None
) -> list[PlayedStep]:
    """Play a run of ten steps on four workers, in whose step `SLOW` the engine takes twice as long."""
    causes = [SlowEngine(SLOW + 1, None, 2.0)] if causes is None else causes
    return list(play_run(usual_shape(seed) if shape is None else shape, causes))


def requests_of(run: Sequence[PlayedStep]) -> Iterator[Request]:
    """Yield the requests of a run, by step and worker."""
    for played in run:
        for worker, played_worker in enumerate(played.workers):
            requests: dict[str, Request] = {}
            for event, start, end, extra, *_ in played_worker.happened:
                if event == "async_rollout_request_complete":
                    requests[extra["request_id"]] = Request(
                        extra["request_id"],
                        played.step - 1,
                        worker,
                        EPOCH + start,
                        EPOCH + end,
                        extra["finish_reason"],
                        extra["reward"],
                        extra["actual_response_tokens"],
                    )
            for call in played_worker.calls:
                request = requests[call.request_id]
                request.calls.append(
                    Call(EPOCH + call.start, EPOCH + call.served.end, call.prompt_tokens, call.tokens)
                )
            for event, start, end, extra, *_ in played_worker.happened:
                if event == "tool_call":
                    requests[extra["request_id"]].tools.append((extra["tool"], EPOCH + start, EPOCH + end))
                if event == "reward_calculation":
                    requests[extra["request_id"]].scored = (EPOCH + start, EPOCH + end)
            yield from requests.values()


def sglang_requests(folder: Path, run: Sequence[PlayedStep]) -> Path:
    """Write the files of SGLang's `FileRequestMetricsExporter`."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "sglang-request-metrics-20260105_08.log").open("w") as file:
        for request in requests_of(run):
            for number, call in enumerate(request.calls):
                record = {
                    "request_parameters": json.dumps({"text": "x" * 300, "sampling_params": {}}),
                    "id": f"{request.id}-{number}",
                    "finish_reason": {"type": "stop", "matched": 2},
                    "prompt_tokens": call.prompt_tokens,
                    "weight_version": "default",
                    "num_retractions": 0,
                    "queue_time": 0.01,
                    "reasoning_tokens": 0,
                    "completion_tokens": call.tokens,
                    "cached_tokens": 0,
                    "dp_rank": request.worker,
                    "e2e_latency": call.end - call.start,
                    "request_received_ts": call.start,
                    "response_sent_to_client_ts": call.end,
                    "request_finished_ts": call.end,
                }
                file.write(json.dumps(record) + "\n")
    return folder


def server_log(folder: Path, run: Sequence[PlayedStep], every: int = 40) -> Path:
    """Write what four servers print, a file each: a line of decode for each `every` tokens of a request."""
    folder.mkdir(parents=True, exist_ok=True)
    for worker in range(len(run[0].workers)):
        with (folder / f"server_{worker}.log").open("w") as file:
            file.write("[2026-01-05 07:59:00] server_args=ServerArgs(model_path='m')\n")
            for played in run:
                for line in _decode_lines(played, worker, every):
                    file.write(line)
    return folder


def _decode_lines(played: PlayedStep, worker: int, every: int) -> Iterator[str]:
    """Yield the lines of a server in a step: each counts `every` steps of the decoder."""
    calls = [(call.start, call.served.end, call.tokens) for call in played.workers[worker].calls]
    now, last = min(start for start, *_ in calls), max(end for _, end, _ in calls)
    yield _stamped(
        now,
        "Prefill batch, #new-seq: 1, #new-token: 64, #cached-token: 0, token usage: 0.00, "
        "#running-req: 0, #queue-req: 0, #pending-token: 0, cuda graph: False, "
        "input throughput (token/s): 0.02",
    )
    before = 0.0
    while now < last:
        running = [(end - start) / tokens for start, end, tokens in calls if start <= now < end]
        if not running:
            now += 0.05
            continue
        step_sec = sorted(running)[len(running) // 2]
        sec = every * step_sec
        per_sec = len(running) * every / (sec if before else sec + 40.0)
        before, now = now, now + sec
        yield _stamped(
            now,
            f"Decode batch, #running-req: {len(running)}, #token: 9120, token usage: 0.31, "
            f"cuda graph: True, gen throughput (token/s): {per_sec:.2f}, #queue-req: 0",
        )


def _stamped(time_sec: float, message: str) -> str:
    stamp = datetime.fromtimestamp(EPOCH + time_sec, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    return f"[{stamp}] {message}\n"


def verl_traces(folder: Path, run: Sequence[PlayedStep]) -> Path:
    """Write the tables of MLflow's SQLite database that verl's traces are in."""
    folder.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(folder / "mlruns.db")) as database:
        database.execute("create table trace_tags (key text, value text, request_id text)")
        database.execute(
            "create table spans (trace_id text, span_id text, parent_span_id text, name text, status text,"
            " start_time_unix_nano bigint, end_time_unix_nano bigint, content text)"
        )
        for number, request in enumerate(requests_of(run)):
            trace = f"tr-{number:032x}"
            tags = {
                "step": request.step,
                "sample_index": number // 8,
                "rollout_n": number % 8,
                "validate": False,
            }
            rows = [(key, str(value), trace) for key, value in tags.items()]
            database.executemany("insert into trace_tags values (?, ?, ?)", rows)
            spans = [(trace, *span) for span in _mlflow_spans(request)]
            database.executemany("insert into spans values (?, ?, ?, ?, 'OK', ?, ?, ?)", spans)
        database.commit()
    return folder


def verl_metrics(folder: Path, run: Sequence[PlayedStep]) -> Path:
    """Write the file of verl's `FileLogger`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "experiment.jsonl"
    with path.open("w") as file:
        for played in run:
            gen, train = played.done - played.begin, played.trained[1] - played.trained[0]
            data = {"actor/loss": 0.1, "timing_s/gen": gen, "timing_s/update_actor": train}
            data |= {"timing_s/step": gen + train + 0.01, "training/global_step": played.step - 1}
            file.write(json.dumps({"step": played.step - 1, "data": data}, separators=(",", ":")) + "\n")
    set_changed(path, EPOCH + run[-1].trained[1])
    return folder


def verl_console(folder: Path, run: Sequence[PlayedStep]) -> Path:
    """Write what verl's `LocalLogger` prints, as Ray shows it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "driver.log"
    lines = []
    for played in run:
        gen, train = played.done - played.begin, played.trained[1] - played.trained[0]
        data = {"actor/loss": 0.1, "timing_s/gen": gen, "timing_s/update_actor": train}
        data["timing_s/step"] = gen + train + 0.01
        pairs = " - ".join(f"{name}:{value}" for name, value in data.items())
        lines.append(f"(TaskRunner pid=7) step:{played.step - 1} - {pairs}\n")
    path.write_text("".join(lines))
    set_changed(path, EPOCH + run[-1].trained[1])
    return folder


def slime_timers(folder: Path, run: Sequence[PlayedStep]) -> Path:
    """Write what slime's `Timer` prints in the trainer's first rank."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "driver.log").open("w") as file:
        for played in run:
            for name, start, end in (
                ("train_wait", played.begin, played.done),
                ("actor_train", *played.trained),
                ("train", *played.trained),
            ):
                text = f"timer.py:32 - Timer {name} end (elapsed: {end - start:.1f}s)"
                file.write(f"(MegatronTrainRayActor pid=7) {_stamped(end, text)}")
            file.write(_stamped(played.trained[1], f"perf {played.step - 1}: {{'perf/train_time': 1.0}}"))
    return folder


def _mlflow_spans(request: Request) -> Iterator[tuple[str, str | None, str, int, int, str]]:
    loop, run = "0" * 16, "1" * 16
    yield loop, None, "agent_loop", *_nanos(request.start, request.end), _content({}, {})
    yield run, loop, "ToolAgentLoop.run", *_nanos(request.start, request.scored[0]), _content({}, {})
    for number, call in enumerate(request.calls):
        given = {
            "request_id": request.id,
            "prompt_ids": list(range(call.prompt_tokens)),
            "sampling_params": {},
        }
        got = {"token_ids": list(range(call.tokens)), "stop_reason": "completed", "num_preempted": 0}
        times = _nanos(call.start, call.end)
        yield f"a{number:015x}", run, "LLMServerClient.generate", *times, _content(given, got)
    for number, (name, start, end) in enumerate(request.tools):
        yield f"b{number:015x}", run, f"{name}.execute", *_nanos(start, end), _content({}, {})


def _nanos(start: float, end: float) -> tuple[int, int]:
    return int(start * 1e6) * 1000, int(end * 1e6) * 1000


def _content(given: dict[str, Any], got: dict[str, Any]) -> str:
    attributes = {"mlflow.spanInputs": json.dumps(given), "mlflow.spanOutputs": json.dumps(got)}
    return json.dumps({"attributes": attributes})


def slime_traces(folder: Path, run: Sequence[PlayedStep]) -> Path:
    """Write slime's dumps of rollout data, a file a step, as `torch.save` does; the tokens are a list."""
    folder.mkdir(parents=True, exist_ok=True)
    samples: dict[int, list[dict[str, Any]]] = {}
    for request in requests_of(run):
        of_step = samples.setdefault(request.step, [])
        of_step.append(_sample(len(of_step), request))
    for step, of_step in samples.items():
        torch_save(folder / f"rollout_{step}.pt", {"rollout_id": step, "samples": of_step})
    return folder


def _sample(index: int, request: Request) -> dict[str, Any]:
    trace: dict[str, Any] = {
        "version": 1,
        "trace_id": f"t{index}",
        "sample_id": index,
        "group_id": index // 8,
    }
    trace |= {"attempt": 0, "events": []}
    spans = [("generate_and_rm", request.start, request.end, {})]
    for call in request.calls:
        counts = {"prompt_tokens": call.prompt_tokens, "completion_tokens": call.tokens, "cached_tokens": 0}
        spans.append(("sglang_generate", call.start, call.end, {**counts, "finish_reason": "stop"}))
    spans += [(f"tool_{name}", start, end, {}) for name, start, end in request.tools]
    spans.append(("reward_model", *request.scored, {}))
    events = []
    for number, (name, start, end, attrs) in enumerate(spans):
        same = {
            "name": name,
            "trace_id": f"t{index}",
            "sample_id": index,
            "group_id": index // 8,
            "attempt": 0,
        }
        same["span_id"] = f"{index:016x}{number:016x}"
        events.append({"type": "span_start", "ts": start, **same})
        events.append({"type": "span_end", "ts": end, **same, **({"attrs": attrs} if attrs else {})})
    trace["events"] = sorted(events, key=lambda event: event["ts"])
    return {
        "group_index": index // 8,
        "index": index,
        "prompt": "p" * 200,
        "tokens": [1000 + number % 5000 for number in range(request.tokens)],
        "response": "r" * request.tokens * 4,
        "response_length": request.tokens,
        "reward": request.reward,
        "status": "truncated" if request.finish == "length" else "completed",
        "weight_versions": [str(request.step)],
        "metadata": {},
        "trace": trace,
    }


def torch_save(path: Path, value: Any) -> None:
    """Write plain values as `torch.save` does: a zip archive with a pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{path.stem}/data.pkl", pickle.dumps(value, protocol=2))
        archive.writestr(f"{path.stem}/version", "3")


def areal_traces(folder: Path, run: Sequence[PlayedStep]) -> Path:
    """Write the files of AReaL's `SessionTracer` and `PerfTracer`."""
    (folder / "session_tracer").mkdir(parents=True, exist_ok=True)
    for number, request in enumerate(requests_of(run)):
        phases = {
            "generate": [{"start_ts": call.start, "end_ts": call.end} for call in request.calls],
            "reward": [{"start_ts": request.scored[0], "end_ts": request.scored[1]}],
            "toolcall": [{"start_ts": start, "end_ts": end} for _, start, end in request.tools],
        }
        record = {
            "task_id": number // 4,
            "session_id": number,
            "rank": request.worker,
            "role": "rollout",
            "status": "accepted",
            "submit_ts": request.start,
            "finalized_ts": request.end,
            "total_s": request.end - request.start,
            "generate_s": sum(call.end - call.start for call in request.calls),
            "reward_s": request.scored[1] - request.scored[0],
            "phases": {name: spans for name, spans in phases.items() if spans},
        }
        with (folder / "session_tracer" / f"sessions-r{request.worker}.jsonl").open("a") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    areal_trainer(folder, run)
    return folder


def areal_trainer(folder: Path, run: Sequence[PlayedStep]) -> None:
    """Write the trainer's file of traces: its times count from 30 s before the run."""
    path = folder / "perf_tracer" / "master" / "traces-r0.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    meta = {"name": "process_name", "ph": "M", "pid": 7, "args": {"name": "[master] Rank 0, Process"}}
    lines = [json.dumps(meta)]
    for played in run:
        for name, start, end in (
            ("train.rollout", played.begin, played.done),
            ("train.ppo_update", *played.trained),
        ):
            lines.append(
                json.dumps(
                    {
                        "name": name,
                        "ph": "X",
                        "ts": int((start + 30) * 1e6),
                        "dur": int((end - start) * 1e6),
                        "pid": 7,
                        "tid": 70,
                        "cat": "compute",
                        "args": {"global_step": played.step - 1, "rank": 0, "role": "master"},
                    }
                )
            )
    path.write_text("\n".join(lines) + "\n")
    set_changed(path, EPOCH + run[-1].trained[1])


def set_changed(path: Path, time_sec: float) -> None:
    """Set when a file was last changed, as if it had been written then."""
    os.utime(path, (time_sec, time_sec))
