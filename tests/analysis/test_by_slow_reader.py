"""Commands answer as a slow reader does, which was written from docs/reference alone, over 40 mutated runs.

Runs have aborts, retries, samples side by side, restarts, two processes of a rank, torn lines, ids without
spans of whole requests. The reader goes over the lines in plain loops.
"""

import json
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sglang_instrument.cli.main import main

T_US = 1_795_161_600_000_000
ENGINE = ("turn_engine_call", "engine_async_generate_actual", "engine_generate")
REQUEST = "async_rollout_request_complete"
Row = dict[str, Any]


def span(event: str, begin: float, end: float, task: int, **extra: Any) -> Row:
    fields = {"extra": extra} if extra else {}
    times = {"duration_sec": round(end - begin, 6), "start_us": T_US + round(begin * 1e6)}
    return {"timestamp": "2026-11-20T09:00:00.000000+00:00", "event": event, **times, **fields, "task": task}


def made_request(
    random: Random, name: str, begin: float, task: int, has_span: bool
) -> tuple[list[Row], float]:
    """Return the records of a request, and when it ended."""
    now, lines, numbered = begin, [], random.random() < 0.5
    tokens = 0
    for turn in range(random.randint(1, 3)):
        ids = {"request_id": name, **({"turn": turn} if numbered else {})}
        length = random.randint(2, 9) / 4
        for sample in range(2 if random.random() < 0.3 else 1):
            count = random.randint(1, 50)
            tokens += count
            apart = sample * 0.25
            call = span("turn_engine_call", now + apart, now + length + apart, task + 1 + sample, **ids)
            call["extra"]["generated_tokens"] = count
            if sample == 0 and random.random() < 0.5:
                lines.append(span("engine_async_generate_actual", now, now + length - 0.125, task + 1, **ids))
            lines.append(call | {"spawned_by": task})
        now += length + 0.5
    lines.append(span("tool_call", now, now + 0.5, task, request_id=name))
    now += 0.5
    if has_span:
        whole = span(REQUEST, begin, now, task, request_id=name)
        lines.append(whole | ({"error": "TimeoutError"} if random.random() < 0.2 else {}) | {"spawned_by": 0})
    return lines, now


def write(folder: Path, seed: int) -> None:
    random = Random(seed)
    has_spans, restarts, doubled = (random.random() < share for share in (0.7, 0.3, 0.3))
    for launch, steps in enumerate([(1, 2, 3), (2, 3)] if restarts else [(1, 2, 3)]):
        for step in steps:
            for worker in (0, 1):
                names = [f"worker_{worker}"] + (["worker_0.other-7"] if doubled and not worker else [])
                for process, stem in enumerate(names):
                    begin = launch * 1000.0 + step * 60.0 + worker
                    lines, ended = [], begin
                    for number in range(3):
                        name, task = f"{process}.{worker}.{number}", 10 + 10 * number
                        lines_of, end = made_request(random, name, begin + number / 4, task, has_spans)
                        if has_spans and random.random() < 0.3:  # the id is used again
                            again, end = made_request(random, name, end + 1, task + 5, has_spans)
                            lines_of += again
                        lines += lines_of
                        ended = max(ended, end)
                    lines.append(span("total_step_duration", begin - 1, ended + random.random(), 0))
                    put(
                        folder / f"step_{step}" / f"{stem}.jsonl", lines, worker, step, f"run{launch}", random
                    )


def put(path: Path, lines: list[Row], worker: int, step: int, run_id: str, random: Random) -> None:
    stamp = f"2026-11-20T{8 + (run_id == 'run1'):02}:00:00.000000+00:00"
    header = {"timestamp": stamp, "event": "log_opened", "extra": {"log_version": 1, "run_id": run_id}}
    closed = {"timestamp": stamp, "event": "step_closed", "extra": {"written": len(lines), "dropped": 0}}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for line in (header, *lines, closed):
            text = json.dumps({**line, "workid": worker, "step": step})
            if line is not header and random.random() < 0.02:
                file.write(text[: len(text) // 2] + "\n")  # torn: the writer was killed and went on
            file.write(text + "\n")


class SlowReader:
    """Reads a run line by line."""

    def __init__(self, folder: Path) -> None:
        self.torn = 0
        self.launches: dict[int, str] = {}  # by step, the one that counts
        self.spans: dict[tuple[int, int, str], list[Row]] = {}  # by step, worker and file
        for path in sorted(folder.glob("step_*/*.jsonl")):
            by_run: dict[str, list[Row]] = {}
            run_id = ""
            for text in path.read_text().splitlines():
                try:
                    line = json.loads(text)
                except ValueError:
                    self.torn += 1
                    continue
                if line["event"] == "log_opened":
                    run_id = line["extra"]["run_id"]
                    by_run[run_id] = []
                elif "duration_sec" in line:
                    begin = line["start_us"] / 1e6
                    line |= {"begin": begin, "end": begin + line["duration_sec"], **line.get("extra", {})}
                    by_run[run_id].append(line)
            newest = max(by_run)  # a later launch replaces the records of an earlier one
            worker = int(path.name.split("_")[1].partition(".")[0])
            step = int(path.parent.name.split("_")[1])
            self.spans[step, worker, path.name] = by_run[newest]
            self.launches[step] = newest

    def requests(self) -> list[Row]:
        rows = []
        for (step, worker, _), spans in self.spans.items():
            wholes = [line for line in spans if line["event"] == REQUEST]
            by_id: dict[str, list[Row]] = defaultdict(list)
            for line in spans:
                if "request_id" in line:
                    by_id[line["request_id"]].append(line)
            for name, lines in by_id.items():
                mine = sorted(
                    (line for line in wholes if line["request_id"] == name), key=lambda line: line["begin"]
                )
                if not wholes:
                    begin, end = min(line["begin"] for line in lines), max(line["end"] for line in lines)
                    mine = [{"begin": begin, "end": end, "duration_sec": end - begin}]
                for attempt, whole in enumerate(mine):
                    later = mine[attempt + 1]["begin"] if attempt + 1 < len(mine) else float("inf")
                    parts = [
                        line
                        for line in lines
                        if (attempt == 0 or line["begin"] >= whole["begin"]) and line["begin"] < later
                    ]
                    of_request = {"request_id": name, "attempt": attempt, "step": step, "worker": worker}
                    rows.append({**of_request, **facts(whole, parts)})
        return rows

    def steps(self) -> list[Row]:
        processes: dict[tuple[int, int], list[Row]] = defaultdict(list)
        for (step, worker, _), spans in self.spans.items():
            processes[step, worker] += [line for line in spans if line["event"] == "total_step_duration"]
        requests, rows = self.requests(), []
        for step in sorted({step for step, _ in processes}):
            of_step = [line for of, lines in processes.items() if of[0] == step for line in lines]
            # All processes of a rank overlap here: the longest counts, as of workers.
            duration_sec = max(line["duration_sec"] for line in of_step)
            count = sum(row["step"] == step for row in requests)
            begin = min(line["begin"] for line in of_step)
            rows.append({"step": step, "duration_sec": duration_sec, "requests": count, "begin": begin})
        for row, following in zip(rows, [*rows[1:], None], strict=True):
            goes_on = following is not None and self.launches[row["step"]] == self.launches[following["step"]]
            row["interval_sec"] = following["begin"] - row["begin"] if following and goes_on else None
        for row in rows:
            del row["begin"]
        return rows


def facts(whole: Row, parts: list[Row]) -> Row:
    """Return what the docs say of a request, from the records that belong to it."""
    engine = [line for line in parts if line["event"] in ENGINE]
    calls = [line for line in engine if not any(is_inside(line, other) for other in engine)]
    calls.sort(key=lambda line: (line["begin"], line["end"]))
    turns: dict[int, list[Row]] = defaultdict(list)
    reach, number = 0.0, -1
    for call in calls:
        number += call["begin"] > reach - 1e-3
        reach = max(reach, call["end"])
        turns[call.get("turn", number)].append(call)
    engine_sec = sum(union(lines) for lines in turns.values())
    failed = whole.get("error") is not None
    return {
        "duration_sec": whole["duration_sec"],
        "error": whole.get("error"),
        "engine_sec": engine_sec,
        "tool_sec": sum(line["duration_sec"] for line in parts if line["event"] == "tool_call"),
        "turns": None if failed else len(turns),
        "response_tokens": None if failed else sum(call["generated_tokens"] for call in calls),
    }


def is_inside(line: Row, other: Row) -> bool:
    return (
        line is not other
        and line["task"] == other["task"]
        and other["begin"] <= line["begin"]
        and line["end"] <= other["end"]
    )


def union(lines: list[Row]) -> float:
    covered, reach = 0.0, 0.0
    for line in sorted(lines, key=lambda line: line["begin"]):
        covered += max(0.0, line["end"] - max(line["begin"], reach))
        reach = max(reach, line["end"])
    return covered


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    assert main([*map(str, words), "--json"]) in (0, 1)
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("seed", range(40))
def test_commands_answer_as_the_slow_reader(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, seed)
    slow = SlowReader(tmp_path)
    expected = sorted(slow.requests(), key=key_of)
    rows = sorted(answer(capsys, "requests", tmp_path, "--limit", 1000)["requests"], key=key_of)
    assert list(map(key_of, rows)) == list(map(key_of, expected))
    for row, wanted in zip(rows, expected, strict=True):
        assert {name: row[name] for name in wanted} == pytest.approx(wanted, abs=1e-5), key_of(wanted)
    if seed % 2:  # every second run: a summary takes most of the time
        return
    summary = answer(capsys, "summary", tmp_path)
    for row, wanted in zip(summary["steps"], slow.steps(), strict=True):
        assert {name: row[name] for name in wanted} == pytest.approx(wanted, abs=1e-5)
    assert summary["health"]["torn"] == slow.torn


def key_of(row: Row) -> tuple[int, int, str, int]:
    return row["step"], row["worker"], row["request_id"], row["attempt"]
