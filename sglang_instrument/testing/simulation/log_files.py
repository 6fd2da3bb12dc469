"""Turn synthetic records into the lines of a log, on the clock of the process that writes them."""

from datetime import datetime, timezone
from operator import itemgetter
from typing import Any, Final

import msgspec

from sglang_instrument.recording.keep.line_types import LogLine
from sglang_instrument.schema import (
    LOG_CLOSED,
    LOG_OPENED,
    LOG_VERSION,
    OPEN_SPANS,
    REFERENCE_EVENTS,
    STEP_CLOSED,
)
from sglang_instrument.testing.simulation.timeline import NEVER, Happened

EPOCH_US: Final = int(datetime(2026, 1, 5, 8, tzinfo=timezone.utc).timestamp()) * 1_000_000
_UTC: Final = "+00:00"
_REQUEST: Final = "async_rollout_request_complete"


class LogFile:
    """What one process writes to one file."""

    def __init__(self, step: int | None, rank: int, skew: float, run_id: str, validate: bool = False) -> None:
        self._step, self._rank, self._run_id, self._validate = step, rank, run_id, validate
        self._epoch_us = EPOCH_US + round(skew * 1e6)
        self._second, self._prefix = -1, ""

    def lines(self, happened: list[Happened], begin: float, end: float, waits: bool = True) -> bytes:
        """Return the whole file; in a step without an end, a tool stays open, or a barrier if it `waits`."""
        records = _in_order(happened)
        lines = [self.control(LOG_OPENED, begin, self.opening(begin))]
        lines += [self.line(record) for record in records]
        if end < NEVER:
            counts = {"written": len(records), "dropped": 0, "sampled_out": 0}
            lines.append(self.control(STEP_CLOSED, end, counts))
            lines.append(self.control(LOG_CLOSED, end, {}))
        else:
            last = records[-1].end if records else begin
            for age in (30, 60, 120):
                stuck = [_stuck("total_step_duration", age + last - begin)]
                stuck += [_stuck("barrier_wait_duration", age)] if waits else _in_tool(records, age, last)
                extra = {"open": len(stuck), "spans": stuck}
                lines.append(self.control(OPEN_SPANS, last + age, extra))
        return msgspec.json.Encoder().encode_lines(lines)

    def reference_lines(self, happened: list[Happened]) -> bytes:
        """Return the file as the reference writes it: only its events and keys, in local time."""
        records = _in_order(happened)
        lines = [self._reference_line(record) for record in records if record.event in REFERENCE_EVENTS]
        return msgspec.json.Encoder().encode_lines(lines)

    def _reference_line(self, record: Happened) -> LogLine:
        duration_sec = None if record.instant else round(record.end - record.start, 9)
        stamp = self._timestamp(record.end).removesuffix(_UTC)
        return LogLine(stamp, record.event, duration_sec, record.extra, self._rank, self._step)

    def opening(self, begin: float) -> dict[str, Any]:
        """Return the fields of the header."""
        clocks = {"wall_ns": (self._epoch_us + int(begin * 1e6)) * 1000, "perf_ns": int(begin * 1e9)}
        return {"log_version": LOG_VERSION, "run_id": self._run_id, "pid": 4000 + self._rank, **clocks}

    def control(self, event: str, time_sec: float, extra: dict[str, Any]) -> LogLine:
        """Return a record without a duration."""
        line = LogLine(self._timestamp(time_sec), event, None, extra, self._rank, self._step)
        line.validate = self._validate
        return line

    def line(self, record: Happened) -> LogLine:
        """Return the line of a record."""
        if record.instant:
            duration_sec, start_us = None, None
        else:
            duration_sec = round(record.end - record.start, 9)
            start_us = self._epoch_us + int(record.start * 1e6)
        return LogLine(
            self._timestamp(record.end),
            record.event,
            duration_sec,
            record.extra,
            self._rank,
            self._step,
            start_us,
            record.task,
            record.spawned_by,
            phase=record.phase,
            validate=self._validate,
        )

    def _timestamp(self, time_sec: float) -> str:
        second, microsecond = divmod(self._epoch_us + int(time_sec * 1e6), 1_000_000)
        if second != self._second:
            self._second = second
            self._prefix = datetime.fromtimestamp(second, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.")
        return f"{self._prefix}{microsecond:06d}{_UTC}"


def _stuck(event: str, age_sec: float, **ids: Any) -> dict[str, Any]:
    return {"event": event, **ids, "age_sec": round(age_sec, 3), "stack": []}


def _in_tool(records: list[Happened], age_sec: float, last: float) -> list[dict[str, Any]]:
    """Return what is open where the tool of the one request that did not end has such an age."""
    begun: dict[str, float] = {}
    for record in records:
        request_id = (record.extra or {}).get("request_id")
        if request_id is not None and record.event == _REQUEST:
            begun.pop(request_id, None)
        elif request_id is not None:
            begun.setdefault(request_id, record.start)
    requests = [
        _stuck(_REQUEST, age_sec + last - start, request_id=request_id) for request_id, start in begun.items()
    ]
    return [*requests, *(_stuck("tool_execution", age_sec, request_id=name, turn=0) for name in begun)]


def _in_order(happened: list[Happened]) -> list[Happened]:
    """Return what ended, by its end; of two that end together, the one that began later first."""
    ended = [record for record in happened if record.end < NEVER]
    ended.sort(key=itemgetter(1), reverse=True)  # start
    ended.sort(key=itemgetter(2))  # end; sorting keeps the order of equal ends
    return ended
