"""Write runs whose engines are slower the more calls they have at once, and whose truth is known.

Two runs of one seed have the same requests, whatever their engine, caps and factors are, so the prediction
from one can be held against the other. All calls in an engine decode at one rate.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

EPOCH_US = 1_790_000_000_000_000


@dataclass(frozen=True)
class Queued:
    """What a run is drawn from; times are seconds.

    A call takes `prefill_sec`, `context_sec` for each token of earlier replies, and for each token
    `token_sec` and `load_sec` for each call in the engine, which runs at most `limit` calls at once. A reply
    of more than `most_tokens` is cut, and ends its request.
    """

    seed: int = 0
    steps: int = 5
    workers: int = 1
    requests: int = 48
    prefill_sec: float = 0.08
    context_sec: float = 0.0001
    token_sec: float = 0.01
    load_sec: float = 0.0003
    shared: bool = False
    limit: int | None = None
    most_tokens: int = 4096
    engine: float = 1.0  # factors
    tool: float = 1.0
    first_step: float = 1.0  # of the engine in the first step
    jitter: float = 0.05  # of a call's work
    drift: float = 0.0  # how much the engine's speed wanders from step to step

    def write(self, folder: Path) -> Path:
        """Write the run."""
        now, wander = 0.0, Random(f"{self.seed}/drift")
        pace = 0.0
        for step in range(1, self.steps + 1):
            pace = 0.5 * pace + wander.gauss(0, self.drift)
            factor = self.engine * (self.first_step if step == 1 else 1.0) * math.exp(pace)
            drawn = [self._draw(step, worker) for worker in range(self.workers)]
            pools = [[one for mine in drawn for one in mine]] if self.shared else drawn
            for pool in pools:
                self._serve(pool, factor)
            now = self._write_step(folder, step, drawn, now)
        return folder

    def _draw(self, step: int, worker: int) -> list[dict[str, Any]]:
        random, made = Random(f"{self.seed}/{step}/{worker}"), []
        for number in range(self.requests):
            turns, count = [], 1
            while count < 6 and random.random() < 0.5:
                count += 1
            for turn in range(count):
                tokens = 8 + int(random.lognormvariate(4.4, 1.0))
                tool = random.lognormvariate(-0.5, 0.7) * self.tool if turn < count - 1 else 0.0
                turns.append({"tokens": tokens, "pace": random.lognormvariate(0, self.jitter), "tool": tool})
            long = next((at for at, one in enumerate(turns) if one["tokens"] > self.most_tokens), None)
            if long is not None:
                turns = turns[: long + 1]
                turns[-1] |= {"tokens": self.most_tokens, "tool": 0.0}
            ids = f"{self.seed}.{step}.{worker}.{number}"
            prompt, reward = random.randint(60, 220), random.lognormvariate(-5, 0.5)
            outside = [random.uniform(0.8, 1.2) for _ in range(4)] if number == 0 else []
            made.append({"id": ids, "prompt": prompt, "turns": turns, "reward": reward, "outside": outside})
        return made

    def _serve(self, pool: list[dict[str, Any]], factor: float) -> None:
        """Set `start` and `end` of each turn: the calls of one engine, naively, from event to event."""
        now, inside, queue = 0.0, [], []
        waiting = [(0.05 + 2e-4 * number, one, 0) for number, one in enumerate(pool)]
        while waiting or inside:
            rate = 1 / (factor * (self.token_sec + self.load_sec * max(1, len(inside))))
            ahead = [at - now for at, _, _ in waiting]
            ahead += [call["prefill"] if call["prefill"] > 0 else call["work"] / rate for call in inside]
            passed = min(ahead)
            now += passed
            for call in inside:
                if call["prefill"] > 0:
                    call["prefill"] -= passed
                    if call["prefill"] < 1e-9:
                        call["prefill"] = 0.0
                else:
                    call["work"] -= passed * rate
            for call in [call for call in inside if call["prefill"] <= 0 and call["work"] < 1e-7]:
                inside.remove(call)
                one, at = call["of"], call["turn"]
                turn = one["turns"][at]
                turn["end"] = now
                if at + 1 < len(one["turns"]):
                    waiting.append((now + turn["tool"] + 1e-3, one, at + 1))
            for entry in [entry for entry in waiting if entry[0] <= now + 1e-12]:
                waiting.remove(entry)
                _, one, at = entry
                turn = one["turns"][at]
                context = sum(before["tokens"] for before in one["turns"][:at])
                prefill = factor * (self.prefill_sec + self.context_sec * context)
                turn["start"] = now
                queue.append(
                    {"of": one, "turn": at, "prefill": prefill, "work": turn["tokens"] * turn["pace"]}
                )
            while queue and (self.limit is None or len(inside) < self.limit):
                inside.append(queue.pop(0))

    def _write_step(self, folder: Path, step: int, drawn: list[list[dict[str, Any]]], begin: float) -> float:
        ends = [max(one["turns"][-1]["end"] + one["reward"] for one in mine) + 0.01 for mine in drawn]
        leave = max(ends) + 0.001
        for worker, mine in enumerate(drawn):
            outside = mine[0]["outside"]
            records = [("preprocessing_duration", 0.0, 0.04 * outside[0], 0, None)]
            for number, one in enumerate(mine):
                records += self._request(one, 1 + number, 2e-4 * number + 0.05)
            records.append(("barrier_wait_duration", ends[worker], leave, 0, None))
            now = leave
            for event, usual, times in zip(_AFTER, (0.02, 0.008, 0.03), outside[1:], strict=True):
                records.append((event, now, now + usual * times, 0, None))
                now += usual * times
            records.append(("total_step_duration", 0.0, leave + 0.1, 0, None))
            self._write(folder / f"step_{step}" / f"worker_{worker}.jsonl", step, worker, records, begin)
        return begin + leave + 0.1 + 20 * Random(f"{self.seed}/{step}/between").uniform(0.95, 1.05)

    def _request(self, one: dict[str, Any], task: int, begin: float) -> list[Any]:
        ids, records = {"request_id": one["id"]}, []
        for number, turn in enumerate(one["turns"]):
            fields = {**ids, "turn": number, "generated_tokens": turn["tokens"]}
            records.append(("turn_engine_call", turn["start"], turn["end"], task, fields))
            if turn["tool"]:
                over = turn["end"] + turn["tool"]
                records.append(("tool_execution", turn["end"], over, task, {**ids, "turn": number}))
        end = one["turns"][-1]["end"]
        records.append(("reward_calculation", end, end + one["reward"], task, ids))
        told = {
            **ids,
            "turns": len(one["turns"]),
            "actual_response_tokens": sum(turn["tokens"] for turn in one["turns"]),
            "prompt_length": one["prompt"],
        }
        records.append(("async_rollout_request_complete", begin, end + one["reward"] + 1e-4, task, told))
        return records

    def _write(self, path: Path, step: int, worker: int, records: list[Any], begin: float) -> None:
        stamp = {"timestamp": "2026-06-01T00:00:00.000000+00:00"}
        lines = [{**stamp, "event": "log_opened", "extra": {"run_id": f"queued-{self.seed}"}}]
        for event, start, end, task, extra in sorted(records, key=lambda one: (one[2], -one[1])):
            start_us = EPOCH_US + round((begin + start) * 1e6)
            fields = {} if extra is None else {"extra": extra}
            line = {**stamp, "event": event, "duration_sec": round(end - start, 9), **fields}
            line |= {"workid": worker, "step": step, "start_us": start_us, "task": task}
            lines.append(line | ({"spawned_by": 0} if task else {}))
        lines += [{**stamp, "event": event} for event in ("step_closed", "log_closed")]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


_AFTER = ("broadcast_duration", "padding_duration", "cache_flush_duration")
