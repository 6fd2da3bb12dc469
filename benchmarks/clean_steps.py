"""Follow generated clean runs in made time, and count the steps in which a problem is told: `clean_steps.py`.

The clean shapes of `recall.py` and another generator's runs are written as their processes would: each line
when it ends, what is open every 2 s and once it is 30 s old. A follower, as `watch` has it, looks every 2 s.
Every second run is on another host, where no process can be asked; in every fourth, such a run's lines of a
worker come up to 20 s late, as over a slow file server. The exit code is 1 if a hang or a death is told in
more than 1 of 1,000 steps.

--runs N so many of each shape, --first N the number of the first, --only NAME the shapes whose names contain
it, --wrong prints what was told.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))
from clean_shapes import CLEAN_SHAPES
from other_runs import OtherRun
from recall import OTHER

from sglang_instrument.live.followed_run import FollowedRun
from sglang_instrument.schema import LOG_CLOSED, LOG_OPENED, WATCHED_PHASES, kind_of
from sglang_instrument.testing.synthetic import write_run

LOOK_SEC = 2.0
OLD_SEC = 30.0  # from then on, and at each doubling, the watchdog tells of a span
LATE_SEC = 20.0
FALSE = 0.001
RUN_ID = "clean"
#: Files without what is needed here: no header, or none of the workers alone.
LEFT_OUT = {"reference's format", "engine logs", "torn closing line", "64 workers"}
SHAPES = [*(name for name in CLEAN_SHAPES if name not in LEFT_OUT), OTHER]


class Span(NamedTuple):
    """A watched span; times are microseconds."""

    start_us: int
    end_us: int
    event: str
    request_id: str | None
    turn: int | None


class WorkerFile:
    """A file of a run, as it grows.

    Attributes:
        lines: When each line is written, in microseconds, and the line.
        spans: Its watched spans, by their starts.
    """

    def __init__(self, path: Path) -> None:
        records = [json.loads(line) for line in path.read_bytes().splitlines()]
        records = [record for record in records if record["event"] != LOG_CLOSED]  # its process goes on
        ends = [_end_us(record) for record in records if "start_us" in record]
        self.keys = {
            name: next(record[name] for record in records if name in record) for name in ("workid", "step")
        }
        self.lines: list[tuple[int, str]] = []
        self.spans: list[Span] = []
        begun_us = min(record["start_us"] for record in records if "start_us" in record)
        at_us = begun_us
        for record in records:
            if "start_us" in record:
                at_us = max(at_us, _end_us(record))
            if record["event"] == LOG_OPENED:
                record["extra"] = {**record["extra"], "run_id": RUN_ID}
            self.lines.append((at_us, json.dumps({**record, "timestamp": _stamp(at_us)})))
            phase = record.get("phase") or kind_of(record["event"]).phase
            if "duration_sec" in record and phase in WATCHED_PHASES:
                extra = record.get("extra", {})
                span = Span(
                    record["start_us"],
                    _end_us(record),
                    record["event"],
                    extra.get("request_id"),
                    extra.get("turn"),
                )
                self.spans.append(span)
        self.spans.sort()
        self.begun_us, self.ended_us = begun_us, max(ends)
        self._next, self._first = 0, 0

    def until(self, now_us: int) -> list[str]:
        """Return the lines that were written since the last call."""
        end = bisect_right(self.lines, (now_us, "\x7f"), self._next)
        begun, self._next = self._next, end
        return [line for _, line in self.lines[begun:end]]

    def open_at(self, now_us: int) -> list[Span]:
        """Return the spans that are open, by their starts."""
        while self._first < len(self.spans) and self.spans[self._first].end_us <= now_us - 10**10:
            self._first += 1
        last = bisect_right(self.spans, (now_us,), self._first)
        return [span for span in self.spans[self._first : last] if span.end_us > now_us]

    def open_now(self, now_us: int) -> str | None:
        """Return what a worker writes every 2 s; None while no request is open."""
        spans = self.open_at(now_us)
        requests: dict[str, list[Span]] = {}
        for span in spans:
            if span.request_id is not None:
                requests.setdefault(span.request_id, []).append(span)
        if not requests and not any(kind_of(span.event).phase == "barrier" for span in spans):
            return None
        oldest = [_described(parts, now_us) for parts in list(requests.values())[:5]]
        innermost = Counter(parts[-1].event for parts in requests.values())
        return self._control(
            "open_now", now_us, open=Counter(span.event for span in spans), requests=innermost, oldest=oldest
        )

    def open_spans(self, now_us: int) -> str | None:
        """Return what the watchdog writes of spans that have become old since the last look."""
        due = [span for span in self.open_at(now_us) if _is_due((now_us - span.start_us) / 1e6)]
        spans = [
            {**_fields(span), "event": span.event, "age_sec": (now_us - span.start_us) / 1e6, "stack": []}
            for span in due
        ]
        return self._control("open_spans", now_us, open=len(spans), spans=spans) if spans else None

    def _control(self, event: str, now_us: int, **extra: Any) -> str:
        return json.dumps({"timestamp": _stamp(now_us), "event": event, "extra": extra, **self.keys})


def _end_us(record: dict[str, Any]) -> int:
    return record["start_us"] + round(record.get("duration_sec", 0.0) * 1e6)


def _stamp(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, timezone.utc).isoformat(timespec="microseconds")


def _fields(span: Span) -> dict[str, Any]:
    named = {"request_id": span.request_id, "turn": span.turn}
    return {name: value for name, value in named.items() if value is not None}


def _described(parts: list[Span], now_us: int) -> dict[str, Any]:
    inner, age_sec = parts[-1], (now_us - parts[0].start_us) / 1e6
    inside = {"in_sec": (now_us - inner.start_us) / 1e6} if len(parts) > 1 else {}
    return {"event": inner.event, **_fields(inner), "age_sec": age_sec, **inside}


def _is_due(age_sec: float) -> bool:
    limit_sec = OLD_SEC
    while limit_sec <= age_sec:
        if age_sec - LOOK_SEC < limit_sec:
            return True
        limit_sec *= 2
    return False


class Told(NamedTuple):
    """What was told in a run: by step, the sentences."""

    name: str
    steps: int
    sentences: dict[str, list[str]]


def follow(name: str, number: int) -> Told:
    """Follow a clean run of a shape."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "whole", Path(folder) / "live"
        if name == OTHER:
            OtherRun(number).write(source)
        else:
            shape = CLEAN_SHAPES[name](number)
            write_run(source, shape.shape, shape.causes)
        files = {
            path.relative_to(source): WorkerFile(path) for path in sorted(source.glob("*_*/worker_*.jsonl"))
        }
        _describe(target, {path.stem for path in files}, is_here=number % 2 == 0)
        late = Random(number).choice(sorted(files)).name if number % 4 == 1 else None
        return Told(name, len({path.parent for path in files}), _told(target, files, late, Random(number)))


def _describe(target: Path, names: set[str], is_here: bool) -> None:
    (target / "processes").mkdir(parents=True)
    host = os.uname().nodename if is_here else "elsewhere"
    for name in names:
        facts = {"run_id": RUN_ID, "role": "worker", "rank": int(name.rpartition("_")[2]), "host": host}
        facts |= {"pid": os.getpid(), "log_closed": False}
        (target / "processes" / f"{name}.json").write_text(json.dumps(facts))


def _told(
    target: Path, files: dict[Path, WorkerFile], late: str | None, random: Random
) -> dict[str, list[str]]:
    run = FollowedRun(target, None, with_now=True, with_done=False)
    sentences: dict[str, list[str]] = {}
    begun_us = min(file.begun_us for file in files.values())
    ended_us = max(file.ended_us for file in files.values())
    real, until = time.monotonic(), dict.fromkeys(files, 0.0)
    for now_us in range(begun_us, ended_us + 2_000_000, round(LOOK_SEC * 1e6)):
        now = real + (now_us - begun_us) / 1e6
        for path, file in files.items():
            if now >= until[path]:
                _append(target / path, file.until(now_us), _open(file, now_us))
                if path.name == late and random.random() < 0.3:
                    until[path] = now + random.uniform(0, LATE_SEC)
        run.tail.hurry()
        while run.read(now):
            pass
        snapshot = run.snapshot(now)
        for problem in snapshot.problems:
            if problem.kind != "loss":
                sentences.setdefault(f"{problem.step}", []).append(
                    f"{problem.sentence} ({(now_us - problem.since_us) / 1e6:.0f} s)"
                )
    run.close()
    return sentences


def _open(file: WorkerFile, now_us: int) -> Iterator[str]:
    if file.begun_us <= now_us < file.ended_us:
        yield from filter(None, (file.open_now(now_us), file.open_spans(now_us)))


def _append(path: Path, lines: list[str], more: Iterator[str]) -> None:
    text = "".join(f"{line}\n" for line in (*lines, *more))
    if text:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as stream:
            stream.write(text)


def main(argv: list[str] | None = None) -> int:
    """Follow the runs, print the table, and return 1 if the bound is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=8, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="N")
    parser.add_argument("--only", default="", metavar="NAME")
    parser.add_argument("--wrong", action="store_true")
    args = parser.parse_args(argv)
    console = Console(width=160)
    table = Table("clean shape", "steps", "told in")
    steps = wrong = 0
    for name in SHAPES:
        if args.only not in name:
            continue
        runs = [follow(name, number) for number in range(args.first, args.first + args.runs)]
        of_name, of_told = sum(run.steps for run in runs), sum(len(run.sentences) for run in runs)
        steps, wrong = steps + of_name, wrong + of_told
        table.add_row(name, str(of_name), str(of_told))
        print(f"{name}: {of_told} of {of_name}, {time.process_time():.0f} s", file=sys.stderr, flush=True)
        for run in runs if args.wrong else []:
            for step, sentences in run.sentences.items():
                console.print(
                    f"{name}, step {step}: {len(sentences)} times: {sentences[0]} ... {sentences[-1]}"
                )
    console.print(table)
    console.print(
        f"a hang or a death is told in {wrong} of {steps} clean steps; {time.process_time():.0f} s of CPU"
    )
    return int(wrong > FALSE * max(steps, 1))


if __name__ == "__main__":
    sys.exit(main())
