"""Copy a run as if some of its processes had run on a host whose clock is ahead."""

import json
import shutil
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path


def skewed_copy(run: Path, folder: Path, ahead_sec: Mapping[str, float]) -> Path:
    """Write the copy, and return its folder.

    Args:
        run: The folder of the run.
        folder: Where to write it.
        ahead_sec: By the stem of a process's files, how far its clock is ahead.
    """
    shutil.copytree(run, folder)
    for name, sec in ahead_sec.items():
        for path in folder.rglob(f"{name}.jsonl"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            path.write_text("".join(json.dumps(_moved(line, sec)) + "\n" for line in lines))
    return folder


def _moved(line: dict, sec: float) -> dict:
    moved = dict(line)
    if "start_us" in line:
        moved["start_us"] = line["start_us"] + round(sec * 1e6)
    ended = datetime.fromisoformat(line["timestamp"]) + timedelta(seconds=sec)
    moved["timestamp"] = ended.isoformat()
    extra = line.get("extra", {})
    if "wall_ns" in extra:
        moved["extra"] = extra | {"wall_ns": extra["wall_ns"] + round(sec * 1e9), "host": "another"}
    return moved
