"""Find hangs: spans still open when a log ended, for longer than any span of their phase took."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.reading.files import Control, File, controls_of
from sglang_instrument.analysis.reading.last_open import UNENDED, last_open_reports, still_blocked
from sglang_instrument.schema import LOOP_BLOCK, STEP_CLOSED, kind_of

_TIMES: Final = 2.0  # times the longest span of its phase in the run
_BLOCKED_SEC: Final = 5.0  # a block of the loop that is shorter is no hang
#: The event of a hang that blocks an event loop outside of any span.
BLOCK: Final = "event_loop"
_REQUEST: Final = ["step", "validate", "worker", "request_id"]


@dataclass(frozen=True)
class OpenHang:
    """The spans in which a worker hung, by its last report.

    Attributes:
        file: Its log, which did not end.
        spans: As reported, the innermost first.
        waits: Whether the worker may just wait for others: the report names steps or barriers, but no work.
        blocks_loop: Whether the one span blocks the worker's event loop.
    """

    file: File
    spans: list[dict[str, Any]]
    waits: bool
    blocks_loop: bool = False


def find_hangs(digest: Digest, files: Sequence[File]) -> list[OpenHang]:
    """Return the hangs in steps that never ended; a step that is merely long is no hang."""
    reports = last_open_reports(files)
    blocked = _blocked(files)
    if not reports:
        return blocked
    longest, last = _longest(digest, files), _last_ends(digest)
    hangs = blocked
    paths = {hang.file.path for hang in blocked}
    for file, control in reports:
        place = file.place
        if place is None or place.step is None or file.path in paths:  # the loop's block explains the others
            continue
        logged_later = last.get((place.step, place.validate, place.worker), 0) > control.time_us
        spans = [span for span in _spans(control) if _hangs(span, longest, logged_later)]
        if spans:
            waits = _phases(control) <= {"step", "barrier"}
            hangs.append(OpenHang(file, sorted(spans, key=_age), waits))
    return hangs


def _blocked(files: Sequence[File]) -> list[OpenHang]:
    """Return the event loops that were blocked when their logs ended, for longer than any before."""
    before = [block.duration_sec or 0.0 for _, block in controls_of(files, LOOP_BLOCK)]
    least_sec = max(_BLOCKED_SEC, _TIMES * max(before, default=0.0))
    hangs = []
    for file, block in still_blocked(files):
        named, is_of_step = block.extra, file.place is not None and file.place.step is not None
        if is_of_step and (named.age_sec or 0.0) > least_sec:
            span: dict[str, Any] = {
                "event": named.in_span or BLOCK,
                "tool": named.tool,
                "request_id": named.request_id,
            }
            span |= {"turn": named.turn, "age_sec": named.age_sec, "place": named.place, "stack": named.stack}
            hangs.append(OpenHang(file, [span], waits=False, blocks_loop=True))
    return hangs


def waits_at_barrier(control: Control) -> bool:
    """Return whether a report of open spans names a barrier, and otherwise only steps."""
    return "barrier" in _phases(control) <= {"step", "barrier"}


def open_step_age_sec(control: Control) -> float:
    """Return for how long a report says that a step has been open; 0 if it names no step."""
    return max((_age(span) for span in _spans(control) if _phase(span) == "step"), default=0.0)


def _phases(control: Control) -> set[str]:
    return {_phase(span) for span in _spans(control)}


def _phase(span: dict[str, Any]) -> str:
    return kind_of(str(span.get("event"))).phase


def _spans(control: Control) -> list[dict[str, Any]]:
    return [span for span in control.extra.spans or [] if isinstance(span, dict)]


def _age(span: dict[str, Any]) -> float:
    return float(span.get("age_sec") or 0.0)


def _hangs(span: dict[str, Any], longest: dict[str, float], logged_later: bool) -> bool:
    """Return whether a span is far older than any ended one; without any, whether the log ends with it."""
    usual = longest.get(_phase(span), longest["step"])
    return _age(span) > _TIMES * usual if usual else not logged_later


def _longest(digest: Digest, files: Sequence[File]) -> dict[str, float]:
    """Return the longest duration of each phase in steps that ended, as far as known."""
    places = [file.place for file, _ in controls_of(files, STEP_CLOSED)]
    closed = {(place.step, place.validate, place.worker) for place in places if place is not None}
    keys = digest.steps.select("step", "validate", "worker").iter_rows()
    whole = digest.steps.filter(pl.Series([key in closed for key in keys], dtype=pl.Boolean))
    unended = digest.requests.filter(pl.col("error") == UNENDED).select(_REQUEST)
    turns = digest.turns.join(unended, on=_REQUEST, how="anti", nulls_equal=True)
    requests = digest.requests.join(unended, on=_REQUEST, how="anti", nulls_equal=True)
    turn_sec = (turns["end_us"] - turns["start_us"]) / 1e6
    longest_sec = {
        "step": whole["duration_sec"].max(),
        "barrier": whole["duration_sec"].max(),
        "request": requests["duration_sec"].max(),
        "turn": turn_sec.max(),
        "tool": turns["tool_sec"].max(),
        "reward": requests["reward_sec"].max(),
    }
    known: dict[str, Any] = {phase: sec for phase, sec in longest_sec.items() if sec}
    return {"step": 0.0, **known}


def _last_ends(digest: Digest) -> dict[tuple[int, bool, int], int]:
    """Return when each worker ended its last span of each step."""
    ends = (pl.col("start_us") + pl.col("duration_sec").fill_null(0.0) * 1e6).max().cast(pl.Int64)
    rows = digest.steps.group_by("step", "validate", "worker").agg(ends=ends).iter_rows()
    return {(step, validate, worker): end for step, validate, worker, end in rows}
