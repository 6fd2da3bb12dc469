"""Read the log of a server that goes on running part by part: each part is a run of its own.

Another server may log to the same folder; its files, `server_0.HOST-PID.jsonl`, are in no part.
"""

from dataclasses import dataclass, field
from pathlib import Path

from awaited import wait_for_rids
from sglang_server import Server

#: A request of this name ends a part; no part contains it.
MARK = "end of "
#: The files of the engine's processes, and the event that shows that the mark has come through each.
PROCESSES = {
    "server_0": "engine_request",
    "scheduler_0_tp0": "scheduler_finish",
}


@dataclass
class ServedParts:
    """A server, the folder in which it logs, and a folder for the parts of this log."""

    server: Server
    log: Path
    parts: Path
    taken_bytes: dict[Path, int] = field(default_factory=dict)

    def begin_part(self, name: str) -> None:
        """Begin a part here; what other tests logged before is in a part that nobody reads."""
        self.end_part(f"others before {name}")

    def end_part(self, name: str) -> Path:
        """Return the run that was logged since the last part, when each process has written all of it.

        A process writes its records in order: all of earlier requests come before those of the mark.
        """
        mark = MARK + name
        sampling = {"max_new_tokens": 1, "ignore_eos": True}
        self.server.post("/generate", {"input_ids": [3], "rid": mark, "sampling_params": sampling})
        for process, event in PROCESSES.items():
            wait_for_rids(self.log / "engine", f"{process}.jsonl", event, [mark])
        return self.copy_part(name)

    def copy_part(self, name: str) -> Path:
        """Return a run of what is in the log and in no earlier part, each file after its first line."""
        for path in self.log.rglob("*.jsonl"):
            if "." in path.stem:
                continue
            logged, begin = path.read_bytes(), self.taken_bytes.get(path, 0)
            header, new = logged[: logged.find(b"\n") + 1], logged[begin:]
            if self.server.process.poll() is None:  # else a torn line stays one
                new = new[: new.rfind(b"\n") + 1]
            self.taken_bytes[path] = begin + len(new)
            lines = [line for line in new.splitlines(keepends=True) if f'"{MARK}'.encode() not in line]
            if lines:
                copy = self.parts / name / path.relative_to(self.log)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes((header if begin else b"") + b"".join(lines))
        return self.parts / name
