"""Write a run bit by bit, as its processes would: made lines, or those of a synthetic run."""

import json
import os
import time
from datetime import datetime, timezone
from pathlib import Path


class LiveRun:
    """A run that is being written; times are seconds of its own clock, which `skew` sets apart from ours."""

    def __init__(self, folder: Path, run_id: str = "run-1", begin_us: int | None = None) -> None:
        self.folder = folder
        self.run_id = run_id
        self.begin_us = time.time_ns() // 1000 if begin_us is None else begin_us

    def open(
        self, step: int, worker: int = 0, time_sec: float = 0.0, role: str = "worker", **extra: object
    ) -> "LiveFile":
        """Begin a file."""
        path = self.folder / f"step_{step}" / f"{role}_{worker}.jsonl"
        file = LiveFile(self, path, step, worker)
        file.control("log_opened", time_sec, log_version=1, run_id=self.run_id, pid=1, **extra)
        return file

    def scheduler(self, rank: int = 0) -> "LiveFile":
        """Begin the file of an engine's scheduler."""
        file = LiveFile(self, self.folder / "engine" / f"scheduler_{rank}_tp0.jsonl", 0, rank)
        file.control("log_opened", 0.0, log_version=1, run_id=self.run_id, pid=1)
        return file

    def process(self, name: str, pid: int, **facts: object) -> None:
        """Describe a process of this host, as it describes itself."""
        folder = self.folder / "processes"
        folder.mkdir(parents=True, exist_ok=True)
        role, _, rank = name.partition("_")
        known = {
            "run_id": self.run_id,
            "role": role,
            "rank": int(rank),
            "host": os.uname().nodename,
            "pid": pid,
        }
        (folder / f"{name}.json").write_text(json.dumps({**known, "log_closed": False, **facts}))


class LiveFile:
    """One file of it."""

    def __init__(self, run: LiveRun, path: Path, step: int, worker: int) -> None:
        self.run, self.path, self.step, self.worker = run, path, step, worker

    def raw(self, text: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(text)

    def line(self, event: str, time_sec: float, duration_sec: float | None = None, **keys: object) -> str:
        """Return a line; keys that a record does not have itself go into `extra`."""
        top_level = {name: keys.pop(name) for name in ("error", "phase") if name in keys}
        us = self.run.begin_us + round(time_sec * 1e6)
        record = {
            "timestamp": datetime.fromtimestamp(us / 1e6, timezone.utc).isoformat(timespec="microseconds")
        }
        record |= {"event": event}
        if duration_sec is not None:
            record["duration_sec"] = duration_sec
        record |= {"extra": keys, "workid": self.worker, "step": self.step}
        if duration_sec is not None:
            record["start_us"] = us - round(duration_sec * 1e6)
        return json.dumps({**record, **top_level}) + "\n"

    def span(self, event: str, time_sec: float, duration_sec: float, **keys: object) -> None:
        """Write a span that ends at a time."""
        self.raw(self.line(event, time_sec, duration_sec, **keys))

    def control(self, event: str, time_sec: float, **keys: object) -> None:
        self.raw(self.line(event, time_sec, **keys))

    def request(self, name: str, time_sec: float, duration_sec: float, tokens: int = 10) -> None:
        """Write a request of one turn that ends at a time."""
        begun = time_sec - duration_sec
        self.control("request_start", begun, request_id=name)
        self.span(
            "turn_engine_call", time_sec, duration_sec, request_id=name, turn=0, generated_tokens=tokens
        )
        self.span("async_rollout_request_complete", time_sec, duration_sec, request_id=name, turns=1)

    def gauges(self, time_sec: float, running: int, waiting: int, kv_free_pages: int) -> None:
        """Say how full a scheduler is, whose cache has 1000 pages."""
        cache = {"kv_tokens": 1000, "kv_page_size": 1, "kv_free_pages": kv_free_pages}
        self.control("scheduler_gauges", time_sec, running=running, waiting=waiting, **cache)

    def open_now(
        self, time_sec: float, requests: dict[str, int], oldest: list[dict[str, object]], **events: int
    ) -> None:
        """Say what is open: requests by their innermost event, and other events."""
        count = sum(requests.values())
        counts = {**({"async_rollout_request_complete": count} if count else {}), **requests, **events}
        self.control("open_now", time_sec, open=counts, requests=requests, oldest=oldest)

    def close(self, time_sec: float, dropped: int = 0) -> None:
        self.span("total_step_duration", time_sec, time_sec, worker=self.worker)
        self.control("step_closed", time_sec, written=1, dropped=dropped, sampled_out=0)


class Replay:
    """Appends the lines of a finished run to another folder, in the order of their times."""

    def __init__(self, source: Path, target: Path) -> None:
        self._lines = sorted(
            (json.loads(line)["timestamp"], str(path.relative_to(source)), line)
            for path in source.rglob("*.jsonl")
            for line in path.read_text().splitlines(keepends=True)
        )
        self._target = target
        self._at = 0

    def __len__(self) -> int:
        return len(self._lines)

    def write(self, lines: int) -> bool:
        """Append so many lines; return whether some are left."""
        by_file: dict[str, list[str]] = {}
        for _, path, line in self._lines[self._at : self._at + lines]:
            by_file.setdefault(path, []).append(line)
        self._at += lines
        for path, texts in by_file.items():
            (self._target / path).parent.mkdir(parents=True, exist_ok=True)
            with (self._target / path).open("a") as file:
                file.write("".join(texts))
        return self._at < len(self._lines)
