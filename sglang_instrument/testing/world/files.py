"""Write what the processes of a world record, in the form of the log."""

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import msgspec

from sglang_instrument.recording.keep.line_types import LogLine
from sglang_instrument.schema import LOG_CLOSED, LOG_OPENED, LOG_VERSION, STEP_CLOSED
from sglang_instrument.testing.world.rollout.shape import WorldShape
from sglang_instrument.testing.world.serving.calls import ServerShape
from sglang_instrument.testing.world.serving.records import WorldRecord

EPOCH_US: Final = int(datetime(2026, 2, 3, 9, tzinfo=timezone.utc).timestamp()) * 1_000_000
_ENCODER: Final = msgspec.json.Encoder()


class WorldWriter:
    """Writes the files of a world: each by a process, on a host with a clock of its own.

    Args:
        folder: Where.
        shape: Of the world.
        servers: The settings of each server, which a fault may have changed.
    """

    def __init__(self, folder: Path, shape: WorldShape, servers: Sequence[ServerShape]) -> None:
        self._folder, self._shape, self._servers = folder, shape, servers
        self._run_id = f"world-{shape.seed.replace(' ', '-').replace('/', '-')}"

    def write(self, files: dict[str, list[WorldRecord]]) -> None:
        """Write all files, and what each process is."""
        processes: dict[str, dict[str, Any]] = {}
        for name, records in files.items():
            process = RecordingProcess(name, self._shape, self._servers)
            path = self._folder / f"{name}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_ENCODER.encode_lines(process.lines(records, self._run_id)))
            processes.setdefault(process.name, process.described(self._run_id))
        home = self._folder / "processes"
        home.mkdir(parents=True, exist_ok=True)
        for name, described in processes.items():
            (home / f"{name}.json").write_bytes(_ENCODER.encode(described))


class RecordingProcess:
    """The process that writes a file: its role, its number, its host, its clock."""

    def __init__(self, file: str, shape: WorldShape, servers: Sequence[ServerShape]) -> None:
        self._shape, self._servers = shape, servers
        folder, _, self.name = file.partition("/")
        self._role, _, rank = self.name.replace("_tp0", "").rpartition("_")
        self._rank = int(rank)
        kind, _, number = folder.partition("_")
        self._step = int(number) if number else None
        self._validate = kind == "validate"
        self.host = self._host()
        skew_sec = shape.skew_sec[self.host] if shape.skew_sec else 0.0
        self._epoch_us = EPOCH_US + round(skew_sec * 1e6)
        self._second, self._prefix = -1, ""

    def _host(self) -> int:
        """Return the host's number: one for each server and worker; the rest is the trainer's."""
        shape = self._shape
        if self._role in ("server", "scheduler", "detokenizer"):
            return shape.servers + self._rank if shape.has_own_engines else self._rank
        return shape.servers + (self._rank if self._role == "worker" else shape.workers)

    def described(self, run_id: str) -> dict[str, Any]:
        """Return what `processes/` says of it."""
        facts = {"run_id": run_id, "role": self._role, "rank": self._rank, "host": f"host-{self.host}"}
        facts |= {"pid": self._pid, "log_closed": True}
        if self._role not in ("server", "scheduler"):
            return facts
        server = self._servers[self._rank]
        settings: dict[str, Any] = {
            "max_running_requests": server.max_running,
            "chunked_prefill_size": server.chunk_tokens,
        }
        settings |= {"max_prefill_tokens": server.prefill_tokens, "schedule_policy": "fcfs"}
        settings |= {
            "schedule_conservativeness": server.conservativeness,
            "max_total_tokens": server.kv_tokens,
        }
        return facts | {"configuration": {"server_args": settings}}

    @property
    def _pid(self) -> int:
        return 4000 + 10 * self.host + len(self._role)

    def lines(self, records: list[WorldRecord], run_id: str) -> list[LogLine]:
        """Return the lines of a file, each where its event ended."""
        ordered = sorted(records, key=lambda record: (record.end, -record.begin))
        begin = min(record.begin for record in records)
        end = ordered[-1].end
        opened = {"log_version": LOG_VERSION, "run_id": run_id, "pid": self._pid, "host": f"host-{self.host}"}
        opened |= {"wall_ns": self._us(begin) * 1000, "perf_ns": int(begin * 1e9)}
        lines = [self._control(LOG_OPENED, begin, opened)]
        lines += [self._line(record) for record in ordered]
        if self._step is not None:
            counts = {"written": len(records), "dropped": 0, "sampled_out": 0}
            lines.append(self._control(STEP_CLOSED, end, counts))
        return [*lines, self._control(LOG_CLOSED, end, {})]

    def _us(self, time_sec: float) -> int:
        return self._epoch_us + int(time_sec * 1e6)

    def _line(self, record: WorldRecord) -> LogLine:
        line = self._control(record.event, record.end, record.extra)
        if not record.instant:
            line.duration_sec = round(record.end - record.begin, 9)
            line.start_us = self._us(record.begin)
        line.task, line.spawned_by = record.task, record.spawned_by
        line.phase, line.error = record.phase, record.error
        return line

    def _control(self, event: str, time_sec: float, extra: dict[str, Any]) -> LogLine:
        line = LogLine(self._timestamp(time_sec), event, None, extra, self._rank, self._step)
        line.validate = self._validate
        return line

    def _timestamp(self, time_sec: float) -> str:
        second, microsecond = divmod(self._us(time_sec), 1_000_000)
        if second != self._second:
            self._second = second
            self._prefix = datetime.fromtimestamp(second, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.")
        return f"{self._prefix}{microsecond:06d}+00:00"
