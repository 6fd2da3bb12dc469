"""Write runs whose workers share servers behind a router: the logs of all, and what really happened there.

Servers work as engines do: a limit of running calls, a queue before it, a prefix cache by conversation. What
readers say is compared with `RoutedRun.truth`, which is counted while the run is played.
"""

import heapq
import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

EPOCH_US = 1_780_000_000_000_000
#: Fields of runs in which routing costs nothing.
QUIET_SHAPES: list[dict[str, Any]] = [
    {},
    {"servers": 4, "workers": 1},
    {"slots": 5},  # queues, but the same at both
    {"policy": "round_robin", "prefill_sec": 2e-5},  # moves cost nothing
    {"policy": "skewed"},  # servers with room for all
    {"flushed": (1, 2, 3, 4)},  # as always in this run
    {"servers": 1, "policy": "random"},
    {"callers": "areal", "engines": False},
    {"engines": False},
    {"policy": "random", "engines": False, "callers": "verl"},  # caches are not known
]


@dataclass
class RoutedRun:
    """What a run is drawn from, and what happened in it.

    Attributes:
        policy: "cache_aware": a conversation stays; "round_robin"; "random"; "skewed": three of four
            conversations go to the first server, and stay there.
        flushed: Steps in which the caches lose everything before each call.
        callers: What workers log of the server: "rid" alone, as slime; "verl": the server they waited for;
            "areal": the server's address, and what the reply told.
        engines: Whether the engines' processes log.
        slots: Calls that a server runs at once.
    """

    policy: str = "cache_aware"
    servers: int = 2
    steps: int = 4
    workers: int = 2
    requests: int = 12
    seed: int = 0
    flushed: tuple[int, ...] = ()
    skewed: tuple[int, ...] = ()
    slots: int = 64
    prefill_sec: float = 2e-3
    token_sec: float = 0.01
    callers: str = "rid"
    engines: bool = True
    truth: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def write(self, folder: Path) -> Path:
        """Play the run, and write its logs."""
        self.random, self.turn = Random(self.seed), count()
        self.files: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.seen: list[dict[str, int]] = [{} for _ in range(self.servers)]
        now = 0.0
        for step in range(1, self.steps + 1):
            now = self._step(step, now) + 2.0
        for name, records in self.files.items():
            path = folder / f"{name}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            records.sort(key=lambda record: record["start_us"] + record["duration_sec"] * 1e6)
            path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return folder

    def _step(self, step: int, begin: float) -> float:
        self.running, self.queues = [0] * self.servers, [[] for _ in range(self.servers)]
        self.events: list[tuple[float, int, Any]] = []
        self.order, self.home = count(), {}
        self.seen = [{} for _ in range(self.servers)]  # new weights, empty caches
        self.done: dict[int, float] = {}
        for worker in range(self.workers):
            for number in range(self.requests):
                talk = self._talk(step, worker, number, begin + 0.01 + 1e-3 * number)
                self._at(begin + 0.01 + 1e-3 * number, talk, None)
        while self.events:
            now, _, (talk, sent) = heapq.heappop(self.events)
            self._go_on(now, talk, sent)
        end = max(self.done.values()) + 0.01
        for worker in range(self.workers):
            self._log(step, worker, "barrier_wait_duration", self.done[worker] + 0.001, end, 0)
            self._log(step, worker, "async_generate_duration", begin + 0.005, self.done[worker], 0)
            self._log(step, worker, "total_step_duration", begin, end + 0.05, 0)
        return end + 0.05

    def _at(self, time: float, talk: Any, sent: Any) -> None:
        heapq.heappush(self.events, (time, next(self.order), (talk, sent)))

    def _go_on(self, now: float, talk: Any, sent: Any) -> None:
        try:
            asked = talk.send(sent)
        except StopIteration:
            return
        if isinstance(asked, float):
            self._at(now + asked, talk, now + asked)
        else:
            self._arrive(now, talk, asked)

    def _arrive(self, now: float, talk: Any, call: dict[str, Any]) -> None:
        """Route a call, and begin it or let it queue."""
        server = self._route(call)
        call |= {"server": server, "arrived": now}
        self.queues[server].append((call, talk))
        self._admit(now, server)

    def _admit(self, now: float, server: int) -> None:
        while self.queues[server] and self.running[server] < self.slots:
            call, talk = self.queues[server].pop(0)
            self.running[server] += 1
            cached = 0 if call["step"] in self.flushed else self.seen[server].get(call["talk"], 0)
            cached = min(cached, call["prompt_tokens"] - 1)
            first = now + (call["prompt_tokens"] - cached) * self.prefill_sec
            end = first + call["tokens"] * self.token_sec
            self.seen[server][call["talk"]] = call["prompt_tokens"] + call["tokens"]
            call |= {"cached_tokens": cached, "admitted": now, "first": first, "end": end}
            self._at(end, self._free(server, end), None)
            self._at(end, talk, call)
            self._served(call, len(self.queues[server]))

    def _free(self, server: int, now: float) -> Any:
        self.running[server] -= 1
        self._admit(now, server)
        return
        yield

    def _route(self, call: dict[str, Any]) -> int:
        talk = call["talk"]
        if self.policy == "round_robin":
            return next(self.turn) % self.servers
        if self.policy == "random":
            return self.random.randrange(self.servers)
        if talk not in self.home:
            fewest = min(
                range(self.servers), key=lambda server: (Counter(self.home.values())[server], server)
            )
            skewed = self.policy == "skewed" or call["step"] in self.skewed
            self.home[talk] = 0 if skewed and self.random.random() < 0.75 else fewest
        return self.home[talk]

    def _served(self, call: dict[str, Any], waiting: int) -> None:
        """Count what a server did, and write what its processes would log."""
        truth = self.truth[f"server_{call['server']}"]
        truth["calls"] += 1
        for name in ("prompt_tokens", "cached_tokens"):
            truth[name] += call[name]
        truth["completion_tokens"] += call["tokens"]
        if not self.engines:
            return
        rid, server = call["rid"], call["server"]
        sizes = {"prompt_tokens": call["prompt_tokens"], "cached_tokens": call["cached_tokens"]}
        fields = {"rid": rid, **sizes, "completion_tokens": call["tokens"], "finish_reason": "stop"}
        self._record(f"engine/server_{server}", "engine_request", call["arrived"], call["end"], fields)
        scheduler = f"engine/scheduler_{server}_tp0"
        received = {"rid": rid, "prompt_tokens": call["prompt_tokens"]}
        self._record(scheduler, "scheduler_receive", call["arrived"], call["arrived"], received)
        cached = 16 * len(self.seen[server])
        gauges = {
            "kv_tokens": 10_000,
            "kv_free_pages": 9_000 - cached,
            "kv_evictable": cached,
            "kv_page_size": 1,
        }
        admitted = {"rids": [rid], "waiting": waiting, "running": self.running[server] - 1, **gauges}
        self._record(scheduler, "scheduler_admit", call["admitted"], call["admitted"], admitted)
        self._record(scheduler, "scheduler_first_tokens", call["first"], call["first"], {"rids": [rid]})
        self._record(
            f"engine/detokenizer_{server}", "engine_detokenize", call["end"], call["end"], {"rids": [rid]}
        )

    def _talk(self, step: int, worker: int, number: int, begin: float) -> Any:
        """Play one request: turns of an engine call and a tool."""
        random, task = self.random, 1 + number
        name, ids = f"{step}.{worker}.{number}", {"request_id": f"{step}.{worker}.{number}"}
        now, prompt, total, turns = begin, random.randint(300, 500), 0, random.randint(2, 5)
        for turn in range(turns):
            tokens = max(8, int(random.lognormvariate(4.0, 0.6)))
            place = {**ids, "turn": turn}
            rid = f"{name}-{turn}"
            call = yield {"talk": name, "step": step, "rid": rid, "prompt_tokens": prompt, "tokens": tokens}
            asked, now = now, call["end"]
            if self.callers == "verl":
                chosen = {**place, "server": f"replica-{call['server']}"}
                self._log(step, worker, "server_wait", asked - 1e-4, asked, task, **chosen)
            fields = {**place, "rid": rid, "generated_tokens": tokens}
            if self.callers == "areal":
                sizes = {key: call[key] for key in ("prompt_tokens", "cached_tokens")}
                fields |= {"server": f"10.0.0.{call['server']}:30000", **sizes}
            self._log(step, worker, "turn_engine_call", asked - 2e-4, now + 1e-4, task, **fields)
            total, prompt = total + tokens, prompt + tokens
            if turn < turns - 1:
                tool = random.uniform(0.2, 0.6)
                self._log(step, worker, "tool_execution", now + 2e-4, now + tool, task, **place)
                now = yield tool + 1e-3
                prompt += random.randint(20, 60)
        end = now + 0.01
        fields = {**ids, "turns": turns, "actual_response_tokens": total, "finish_reason": "stop"}
        self._log(step, worker, "async_rollout_request_complete", begin - 1e-3, end, task, **fields)
        self.done[worker] = max(self.done.get(worker, 0.0), end)

    def _log(
        self, step: int, worker: int, event: str, start: float, end: float, task: int, **fields: Any
    ) -> None:
        place = {"workid": worker, "step": step, "task": task}
        self._record(f"step_{step}/worker_{worker}", event, start, end, fields, **place)

    def _record(self, name: str, event: str, start: float, end: float, fields: Any, **place: Any) -> None:
        record = {"timestamp": "2026-06-01T00:00:00+00:00", "event": event, "duration_sec": end - start}
        start_us = EPOCH_US + round(start * 1e6)
        self.files[name].append(record | {"extra": fields, **place, "start_us": start_us})
