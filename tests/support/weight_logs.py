"""Write the logs of engines whose weights are updated, record by record, with causes planted or without."""

import json
from pathlib import Path

from hand_written import record

Record = dict


def write_process(folder: Path, name: str, records: list[Record]) -> None:
    """Write the records of a process, such as "engine/scheduler_0_tp0", with a header."""
    path = folder / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    timestamp = record("", 0, 0)["timestamp"]
    header = {"timestamp": timestamp, "event": "log_opened", "extra": {"log_version": 1, "run_id": "now"}}
    with path.open("a") as file:
        for line in [header, *records]:
            print(json.dumps(line, separators=(",", ":")), file=file)


def update(start: float, end: float, version: int | None = None, **extra) -> Record:
    """Return a transfer of weights."""
    fields = {} if version is None else {"weight_version": str(version)}
    return record("weights_update", start, end, extra={"part": "transfer", **fields, **extra})


def flush(time_sec: float, success: bool = True) -> Record:
    """Return a flush of the cache."""
    return record("engine_cache_flush", time_sec, time_sec + 0.01, extra={"success": success})


def pause(time_sec: float, sec: float = 0.01) -> Record:
    """Return a pause of generation."""
    return record("generation_pause", time_sec, time_sec + sec)


def drain(time_sec: float, sec: float = 0.01) -> Record:
    """Return the wait until the server's calls have ended."""
    return record("generation_drain", time_sec, time_sec + sec, extra={"part": "drain"})


def resume(time_sec: float) -> Record:
    """Return the end of a pause."""
    return record("generation_continue", time_sec, time_sec + 0.01)


class Engine:
    """A server with one scheduler: collects the records of calls and updates, and writes both files."""

    def __init__(self, rank: int = 0) -> None:
        """Begin with nothing served."""
        self.rank = rank
        self.of_server: list[Record] = []
        self.of_scheduler: list[Record] = []

    def serve(self, rid, start, end, cached=0, prompt=100, tokens=50, node=None, prompt_end=None, **extra):
        """Serve one call: admitted at once; `extra` says more of its reply, such as weight_version.

        `node` is that of the cache at which its cached prefix ends, `prompt_end` where its prompt ends.
        """
        fields = {"prompt_tokens": prompt, "cached_tokens": cached, "completion_tokens": tokens}
        fields |= {"rid": rid, "finish_reason": "stop", **extra}
        self.of_server.append(record("engine_request", start, end, extra=fields))
        self.of_scheduler += [
            record("scheduler_receive", start, start, extra={"rid": rid, "prompt_tokens": prompt}),
            record(
                "scheduler_admit",
                start,
                start + 0.001,
                extra={"rids": [rid], **({} if node is None else {"nodes": [node]})},
            ),
            record(
                "scheduler_first_tokens",
                start + 0.001,
                start + 0.1,
                extra={"rids": [rid], **({} if prompt_end is None else {"nodes": [prompt_end]})},
            ),
        ]

    def write(self, folder: Path) -> None:
        """Write its files."""
        write_process(folder, f"engine/server_{self.rank}", self.of_server)
        write_process(folder, f"engine/scheduler_{self.rank}_tp0", self.of_scheduler)
