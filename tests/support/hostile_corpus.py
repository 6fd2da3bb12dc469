"""Make logs that are wrong in ways that a draw chooses: values, keys, lines and files, in real shapes."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import zstandard
from parquet_bombs import BOMBS

#: Raw JSON in place of a value, so that also what Python does not write is tried.
VALUES = [
    *("null", "true", "false", "-1", "0", "1.5", "1e13", "1e308", "-0.0", "NaN", "Infinity", "1e999"),
    *("1180591620717411303424", "-9223372036854775809", "9223372036854775807", "4294967295", "00", "0x1"),
    *('""', '"x"', '"12"', '"\\u001b]52;c;ZQ==\\u0007\\u202e"', '"\\ud800"', '"\\u0000"', f'"{"y" * 5000}"'),
    *(
        "[]",
        "{}",
        "[[]]",
        '{"a": {}}',
        "[1, 2]",
        '["x"]',
        "[" * 600 + "]" * 600,
        '{"a":' * 600 + "1" + "}" * 600,
    ),
    *('"0001-01-01T00:00:00+00:00"', '"9999-12-31T23:59:59.999999-14:00"', '"290000-01-01T00:00:00Z"'),
    *(
        '"2026-01-05T08:00:00"',
        '"now"',
        '"worker_0"',
        '"async_rollout_request_complete"',
        '"total_step_duration"',
    ),
]
BYTES = [
    b"\x00",
    b"\xff\xfe",
    b"\r",
    b"\n",
    b"{",
    b"}",
    b'"',
    b"\\",
    b"\x1b[2J",
    b"\xe2\x80\xae",
    b" " * 900,
    b"[[[[",
]
NAMES = [
    "worker_0.host-1.jsonl",
    "worker_7.jsonl",
    "trainer_0.jsonl",
    "x.jsonl",
    "worker_00.jsonl",
    "scheduler_0_tp0.jsonl",
]


def mutated(source: Path, target: Path, seed: int) -> Path:
    """Copy a log with mistakes in it; the same seed makes the same ones."""
    draw = random.Random(seed)
    shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    files = sorted(path for path in target.rglob("*") if path.is_file()) if target.is_dir() else [target]
    for path in draw.sample(files, min(len(files), 1 + draw.randrange(6))):
        how = draw.choices(_CHANGES, _WEIGHTS)[0]
        how(path, draw)
    return target


def _lines(path: Path, draw: random.Random) -> None:
    """Change some lines: their values, keys, order, ends."""
    lines = _read(path).split(b"\n")
    changed: list[bytes] = []
    share = draw.choice([0.02, 0.2, 0.8])
    for line in lines:
        if line and draw.random() < share:
            changed += draw.choices(_LINE_CHANGES, _LINE_WEIGHTS)[0](line, draw)
        else:
            changed.append(line)
    _write(path, b"\n".join(changed))


def _value(line: bytes, draw: random.Random) -> list[bytes]:
    """Put another value in the place of one, however deep it stands."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return _bytes(line, draw)
    places = list(_places(record))
    if not places:
        return [line]
    holder, key = draw.choice(places)
    change = draw.random()
    if change < 0.15:
        del holder[key]
    elif change < 0.25 and isinstance(holder, dict):
        holder[draw.choice(["request_id", "turn", "spawned_by", "task", "rid", "rids", "x\x1b"])] = (
            holder.pop(key)
        )
    else:
        mark = "\x01mark\x01"
        holder[key] = mark
        return [json.dumps(record).replace(json.dumps(mark), draw.choice(VALUES)).encode()]
    return [json.dumps(record).encode()]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in list(pairs):
        yield value, key
        yield from _places(below)


def _bytes(line: bytes, draw: random.Random) -> list[bytes]:
    begin = draw.randrange(len(line) + 1)
    end = min(len(line), begin + draw.randrange(4))
    return [line[:begin] + draw.choice(BYTES) + line[end:]]


def _cut(line: bytes, draw: random.Random) -> list[bytes]:
    return [line[: draw.randrange(len(line) + 1)]]


def _again(line: bytes, draw: random.Random) -> list[bytes]:
    return [line] * draw.choice([2, 2, 50])


def _left_out(line: bytes, draw: random.Random) -> list[bytes]:
    return []


def _truncated(path: Path, draw: random.Random) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: draw.randrange(len(raw) + 1)])


def _flipped(path: Path, draw: random.Random) -> None:
    raw = bytearray(path.read_bytes())
    for _ in range(draw.choice([1, 8, 200])):
        if raw:
            raw[draw.randrange(len(raw))] = draw.randrange(256)
    path.write_bytes(bytes(raw))


def _emptied(path: Path, draw: random.Random) -> None:
    path.write_bytes(
        draw.choice([b"", b"\n", b"\x00" * 4096, b"PK\x03\x04", b"PAR1", b"SQLite format 3\x00"])
    )


def _replaced(path: Path, draw: random.Random) -> None:
    path.unlink()
    draw.choice(
        [
            lambda: os.mkfifo(path),
            lambda: path.symlink_to("/dev/zero"),
            lambda: path.symlink_to(path.name),
            lambda: path.symlink_to("/etc/hostname"),
            path.mkdir,
            lambda: path.symlink_to(path.parent),
        ]
    )()


def _copied(path: Path, draw: random.Random) -> None:
    """Write the same again under another name, packed or not."""
    target = path.with_name(draw.choice(NAMES))
    packed = draw.choice(["", ".zst", ".gz"])
    raw = path.read_bytes()
    packers: dict[str, Callable[[bytes], bytes]] = {
        "": bytes,
        ".zst": zstandard.compress,
        ".gz": gzip.compress,
    }
    whole = packers[packed](raw)
    target.with_name(target.name + packed).write_bytes(whole[: draw.choice([len(whole), len(whole) // 2])])


def _bombed(path: Path, draw: random.Random) -> None:
    """Let a Parquet file stand for hundreds of megabytes; lines of another file are shuffled."""
    if path.suffix == ".parquet" and pl.read_parquet_schema(path):
        BOMBS[draw.choice(sorted(BOMBS))](path)
    else:
        _swapped(path, draw)


def _swapped(path: Path, draw: random.Random) -> None:
    lines = _read(path).split(b"\n")
    draw.shuffle(lines)
    _write(path, b"\n".join(lines))


def _read(path: Path) -> bytes:
    raw = path.read_bytes()
    return gzip.decompress(raw) if path.suffix == ".gz" else raw


def _write(path: Path, raw: bytes) -> None:
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)


_LINE_CHANGES = (_value, _bytes, _cut, _again, _left_out)
_LINE_WEIGHTS = (12, 2, 1, 1, 1)
_CHANGES = (_lines, _truncated, _flipped, _emptied, _replaced, _copied, _bombed)
_WEIGHTS = (12, 1, 2, 1, 1, 2, 1)
