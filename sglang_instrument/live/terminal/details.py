"""Find what a person asks about a running run beyond its snapshot: one request's records, and the verdict."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sglang_instrument.analysis.reading.chunks import whole_lines
from sglang_instrument.analysis.reading.folders import place_of
from sglang_instrument.analysis.reading.records.fields import RequestIds, typed
from sglang_instrument.analysis.reading.records.lines import Line, Rejects, decode
from sglang_instrument.live.children import environment
from sglang_instrument.live.counting.counts import folder_of
from sglang_instrument.live.counting.parts import end_us, start_us
from sglang_instrument.live.state import OpenRequest, StepNow
from sglang_instrument.live.words import duration
from sglang_instrument.plain_text import plain
from sglang_instrument.regular_files import open_regular
from sglang_instrument.schema import CONTROL_EVENTS

_MOST_BYTES: Final = 512 * 2**20  # of a worker's file that are searched, the last ones
_LEAST_SEC: Final = 0.001  # shorter spans are left out: a person looks for where the time went
_FINDINGS: Final = 5


def request_lines(logs: Path, step: StepNow, request: OpenRequest) -> Iterator[str]:
    """Yield lines that tell what a request did so far: when, for how long, in which turn.

    Args:
        logs: The run's folder.
        step: The step in progress.
        request: The request.
    """
    lines = [line for line in _records_of(logs, step, request) if line.event not in CONTROL_EVENTS]
    spans = [line for line in lines if (line.duration_sec or 0.0) >= _LEAST_SEC]
    begun_us = min(map(start_us, lines), default=0)
    if not lines:
        yield "nothing of it has ended yet"
    for line in sorted(spans, key=lambda line: (start_us(line), -end_us(line))):
        number = typed(line.extra, RequestIds).turn
        turn = "" if number is None else f"turn {number + 1}"
        begun = duration((start_us(line) - begun_us) / 1e6)
        error = f"  {plain(line.error)}" if line.error else ""
        yield f"+{begun:>11}  {turn:8} {plain(line.event):34} {duration(line.duration_sec or 0.0):>11}{error}"
    now = f"now: {request.event} is open" if request.event else "now: open"
    yield f"{now}; the request is {duration(request.age_sec)} old"


def _records_of(logs: Path, step: StepNow, request: OpenRequest) -> Iterator[Line]:
    """Yield the records of a request in the files of its worker; a file that vanishes has none."""
    # Without quotes: it may be logged as a number.
    wanted = json.dumps(request.request_id, ensure_ascii=False).strip('"').encode(errors="replace")
    for path in sorted((logs / folder_of((step.step, step.validate))).glob(f"{request.role}_*.jsonl")):
        place = place_of(path)
        if place is None or place.worker != request.worker:
            continue
        try:
            with open_regular(path) as stream:
                stream.seek(max(0, stream.seek(0, 2) - _MOST_BYTES))
                for chunk in whole_lines(stream):
                    matches = [line for line in chunk.split(b"\n") if wanted in line]
                    yield from (
                        line for line in decode(b"\n".join(matches), Rejects()) if _is_of(line, request)
                    )
        except OSError:
            continue


def _is_of(line: Line, request: OpenRequest) -> bool:
    return str(typed(line.extra, RequestIds).request_id) == request.request_id


def verdict_lines(logs: str) -> list[str]:
    """Return lines with the verdict so far and its findings: those of `summary`, in a process of its own."""
    asked = [sys.executable, "-m", "sglang_instrument.cli.main", "summary", logs, "--json"]
    done = subprocess.run(asked, env=environment(), capture_output=True, check=False)  # noqa: S603 - our own command
    if done.returncode:
        return done.stderr.decode(errors="replace").splitlines()[-1:]
    answer = json.loads(done.stdout)
    sentences = [answer["verdict"], ""]
    for finding in answer["findings"][:_FINDINGS]:
        sentences += [f"{duration(finding['lost_sec'])}: {finding['sentence']}", f"    {finding['advice']}"]
    return [plain(line) for line in sentences]
