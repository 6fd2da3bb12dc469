"""Write clean runs of another kind than `synthetic_run` makes, on which the analysis was not tuned.

Lengths have Pareto, gamma or bimodal distributions and may grow from step to step; workers differ in speed;
the speed of steps is autocorrelated, the first may be slower, the engine slows down under load; tools and
rewards have heavy tails. No cause is planted, unless asked for.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

EPOCH_US = 1_780_000_000_000_000
Draw = Callable[[], float]


class OtherRun:
    """A run with a shape drawn by its seed; `slow` is the planted cause: (kind, step, worker, factor)."""

    def __init__(self, seed: int, slow: tuple[str, int, int, float] | None = None) -> None:
        self.random = random = Random(seed)
        self.slow = slow
        self.workers = random.choice([1, 2, 3, 4, 6, 8, 12])
        self.steps = random.randint(3, 14)
        self.requests = random.choice([4, 8, 12, 24, 40])
        if slow is not None:
            self.workers, self.steps, self.requests = 4, 8, 16
        self.tokens = self._lengths()
        self.growth = random.uniform(-0.03, 0.08)
        self.token_sec = random.uniform(0.005, 0.04)
        self.speeds = [math.exp(random.gauss(0, random.uniform(0, 0.1))) for _ in range(self.workers)]
        self.jitter = random.uniform(0.05, 0.4)
        self.load = random.uniform(0, 0.02)
        self.prefill_sec = random.uniform(0.0, 0.3)
        self.tool = self._seconds(random.uniform(0.05, 2.0))
        self.reward = self._seconds(random.uniform(0.001, 0.5))
        self.most_turns = random.choice([1, 2, 5, 9])

    def _lengths(self) -> Draw:
        random = self.random
        shape = random.uniform(0.5, 2.0)
        tail = random.uniform(1.2, 2.5)
        return random.choice(
            [
                lambda: 20 * random.paretovariate(tail),
                lambda: random.gammavariate(shape, 150 / shape),
                lambda: random.gauss(60, 10) if random.random() < 0.8 else random.gauss(900, 200),
            ]
        )

    def _seconds(self, mean: float) -> Draw:
        random = self.random
        tail = random.uniform(1.4, 3.0)
        return random.choice(
            [
                lambda: random.expovariate(1 / mean),
                lambda: mean / 2 * random.paretovariate(tail),
                lambda: random.uniform(0.5, 1.5) * mean,
            ]
        )

    def write(self, folder: Path) -> Path:
        """Write the run."""
        random = self.random
        memory, spread = random.uniform(0, 0.9), random.uniform(0, 0.12)
        drift, now = 0.0, 0.0
        warm_up = random.choice([1.0, 1.0, random.uniform(1.0, 1.25)])
        for step in range(1, self.steps + 1):
            drift = memory * drift + random.gauss(0, spread)
            pace = self.token_sec * math.exp(drift) * (warm_up if step == 1 else 1.0)
            written = [self._worker(step, rank, now, pace) for rank in range(self.workers)]
            leave = max(arrival for _, arrival in written) + 0.002
            for rank, (records, arrival) in enumerate(written):
                records.append(("barrier", arrival, leave, 0, None))
                records.append(("total_step_duration", now, leave + 0.1, 0, None))
                self._write(folder / f"step_{step}" / f"worker_{rank}.jsonl", step, rank, records)
            now = leave + random.uniform(5, 50)
        return folder

    def _worker(self, step: int, rank: int, now: float, pace: float) -> tuple[list[Any], float]:
        pace *= self.speeds[rank] * (1 + self.load * self.requests)
        records: list[Any] = []
        arrival = now
        kind, at_step, at_rank, factor = self.slow or ("", 0, 0, 1.0)
        times = {kind: factor} if (step, rank) == (at_step, at_rank) else {}
        for number in range(self.requests):
            arrival = max(arrival, self._request(step, rank, number, now + 0.01, pace, times, records))
        records.append(("async_generate_duration", now + 0.005, arrival + 0.001, 0, None))
        return records, arrival + 0.002

    def _request(
        self, step: int, rank: int, number: int, begin: float, pace: float, times: Any, records: list[Any]
    ) -> float:
        random, task = self.random, 1 + number
        ids = {"request_id": f"{step}.{rank}.{number}"}
        turns, total, now = random.randint(1, self.most_turns), 0, begin
        for turn in range(turns):
            tokens = max(1, min(8192, int(self.tokens() * (1 + self.growth) ** step)))
            took = self.prefill_sec * random.random() + tokens * pace * random.lognormvariate(0, self.jitter)
            took *= times.get("engine", 1.0)
            fields = {**ids, "turn": turn, "generated_tokens": tokens}
            records.append(("turn_engine_call", now, now + took, task, fields))
            now, total = now + took + 1e-4, total + tokens
            if turn < turns - 1:
                took = self.tool() * times.get("tool", 1.0)
                records.append(("tool_execution", now, now + took, task, {**ids, "turn": turn}))
                now += took + 1e-4
        took = self.reward() * times.get("reward", 1.0)
        records.append(("reward_calculation", now, now + took, task, ids))
        now += took + 1e-4
        request_fields = {
            **ids,
            "turns": turns,
            "actual_response_tokens": total,
            "reward": float(random.random() < 0.5),
        }
        records.append(("async_rollout_request_complete", begin, now, task, request_fields))
        return now

    def _write(self, path: Path, step: int, rank: int, records: list[Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        stamp = {"timestamp": "2026-06-01T00:00:00.000000+00:00"}
        opened = {**stamp, "event": "log_opened", "extra": {"run_id": "other"}}
        lines = [opened]
        for event, start, end, task, extra in sorted(records, key=lambda record: (record[2], -record[1])):
            times = {"duration_sec": round(end - start, 9), "start_us": EPOCH_US + int(start * 1e6)}
            fields = {} if extra is None else {"extra": extra}
            line = {**stamp, "event": event, **times, **fields, "workid": rank, "step": step, "task": task}
            lines.append(line | ({"spawned_by": 0} if task else {}))
        closing = [{**stamp, "event": event} for event in ("step_closed", "log_closed")]
        path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *closing]))
