"""Remember which captures were started, beside their traces: engines do not tell whether they record."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from sglang_instrument.errors import InstrumentError
from sglang_instrument.profilers.options import ProfileOptions
from sglang_instrument.profilers.switching import SwitchOutcome
from sglang_instrument.profilers.trace_files import NOTE, TraceFile, files_in
from sglang_instrument.regular_files import read_regular, write_anew

_LEAST_FREE_BYTES = 1 * 2**30  # one second of an engine on a GPU makes up to 100 MB per rank

Note = dict[str, Any]


class _NotedWorker(msgspec.Struct):
    url: str = ""
    folder: str = ""


class _CaptureNote(msgspec.Struct):
    workers: list[_NotedWorker]
    started_unix: float = 0.0
    options: dict[str, Any] = {}


class FolderError(InstrumentError):
    """The traces cannot be written to their folder; SGLang's server would end when it tries."""


def check_folder(output_dir: str, urls: Sequence[str], least_free_bytes: int | None = None) -> str:
    """Check that traces can be written, as far as this machine can tell; return what it cannot tell.

    SGLang's scheduler dies if it cannot write a trace, and the whole server with it.

    Raises:
        FolderError: A worker is on this machine, and the folder is not writable or its disk is full.
    """
    if not any(map(is_this_machine, urls)):
        return f"{output_dir} is on the workers' machines; here it is found only if they share it"
    folder = Path(output_dir).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0" * 4096)
            probe.flush()
        state = os.statvfs(folder)
    except OSError as error:
        raise FolderError(
            f"--output-dir {output_dir}: {error.strerror}; SGLang's server ends when it cannot write its "
            "trace, so nothing was started; choose another folder"
        ) from error
    free = state.f_bavail * state.f_frsize
    least_free_bytes = _LEAST_FREE_BYTES if least_free_bytes is None else least_free_bytes
    if free < least_free_bytes:
        raise FolderError(
            f"--output-dir {output_dir}: {free / 2**20:,.0f} MiB are free, and traces need up to "
            f"{least_free_bytes / 2**20:,.0f}; SGLang's server ends when its disk is full, so nothing was "
            "started; make room, or choose another folder"
        )
    return ""


def is_this_machine(url: str) -> bool:
    """Return whether an address belongs to this machine."""
    host = (urlsplit(url).hostname or "").lower()
    if host in ("localhost", "127.0.0.1", "::1", socket.gethostname().lower()):
        return True
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
            trial.bind((host, 0))  # only addresses of this machine can be bound
    except OSError:
        return False
    return True


def write_note(options: ProfileOptions, profile_id: str, outcomes: Sequence[SwitchOutcome]) -> Path | None:
    """Write a note of what was started; return the capture's folder, or None if it cannot be written here."""
    folder = Path(options.output_dir).expanduser() / profile_id
    note = {
        "profile_id": profile_id,
        "started_unix": time.time(),
        "options": asdict(options),
        "workers": [outcome.as_json() for outcome in outcomes if outcome.ok],
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder, note)
    except OSError:
        return None
    return folder


def mark_stopped(folder: Path) -> None:
    """Add to a capture's note that it was stopped."""
    try:
        _write(folder, {**_read(folder / NOTE), "stopped_unix": time.time()})
    except (OSError, ValueError):
        pass  # the traces matter; the note only helps the next command


def captures(output_dir: str | Path) -> list[tuple[Path, Note]]:
    """Return the captures below a folder that were started from this machine, the newest first."""
    pairs = []
    for path in Path(output_dir).expanduser().glob(f"*/{NOTE}"):
        try:
            pairs.append((path.parent, _read(path)))
        except (OSError, ValueError):
            continue
    return sorted(pairs, key=lambda pair: -float(pair[1].get("started_unix", 0)))


def _write(folder: Path, note: Note) -> None:
    write_anew(folder / NOTE, json.dumps(note, indent=1).encode())


def _read(path: Path) -> Note:
    """Return a note; everybody may write to a folder of traces, so check that it looks like one of ours.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not a note.
    """
    try:
        note = json.loads(read_regular(path))
        msgspec.convert(note, _CaptureNote)
    except (RecursionError, msgspec.ValidationError) as error:
        raise ValueError(str(error)) from None
    return dict(note)


def running(output_dir: str | Path, urls: Iterable[str]) -> dict[str, tuple[Path, Note]]:
    """Return, by address, the captures that were started and have neither a stop nor a complete file."""
    wanted = set(urls)
    by_url: dict[str, tuple[Path, Note]] = {}
    for folder, note in captures(output_dir):
        if "stopped_unix" in note:
            continue
        for worker in note["workers"]:
            url = worker.get("url")
            # A bounded capture on another machine may have ended: its files may not be visible here.
            unknown = note.get("options", {}).get("num_steps") is not None and not is_this_machine(str(url))
            if url in wanted and url not in by_url and not unknown and not _has_whole(files_of(worker)):
                by_url[url] = (folder, note)
    return by_url


def files_of(worker: Note) -> list[TraceFile]:
    """Return the files that a worker of a note has written, as far as this machine can see them."""
    return files_in(worker["folder"]) if worker.get("folder") else []


def _has_whole(files: Sequence[TraceFile]) -> bool:
    return any(file.whole is not False for file in files)
