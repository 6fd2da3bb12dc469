"""Say in words what a snapshot holds: the terminal, the page and `watch --once` show the same."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from sglang_instrument.live.state import OpenRequest, Problem, Snapshot, StepDone, StepNow, WorkerNow
from sglang_instrument.plain_text import duration as duration
from sglang_instrument.plain_text import listed
from sglang_instrument.sparkline import sparkline

_PARTS: Final = 6  # of the ledger that are shown; the others are summed up
_NAMED: Final = 3  # of many requests
_REST: Final = "rest"
_UUID: Final = re.compile(r"\b([0-9a-f]{8})-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}\b")


def named_step(step: StepNow | StepDone) -> str:
    """Return "step 12" or "validation 12"."""
    return f"{'validation' if step.validate else 'step'} {step.step}"


def headline(snapshot: Snapshot) -> str:
    """Return what the run does now, in a line."""
    if snapshot.waiting is not None:
        return f"waiting: {snapshot.waiting}"
    step = snapshot.step
    if step is None:
        return "no step has begun yet"
    of = "" if step.requests_expected is None else f" of {step.requests_expected:,}"
    done = f"{step.requests_done:,}{of} requests done"
    if snapshot.catching_up:
        return f"{named_step(step)}: {done} so far; the log is still being read"
    if step.is_over:
        return f"{named_step(step)} took {duration(step.age_sec)}: {done}; no newer one has begun"
    rate = f", {step.tokens_per_sec:,.0f} tokens/s" if step.tokens else ""
    return f"{named_step(step)}, {duration(step.age_sec)} old: {done}, {step.requests_open:,} open{rate}"


def where(open_kinds: Mapping[str, int]) -> str:
    """Return where open requests are: "engine 80, tool 3"."""
    return ", ".join(f"{kind} {count:,}" for kind, count in open_kinds.items())


def forecast(step: StepNow) -> str:
    """Return when the step ends and what decides it; "" where that is not known."""
    known = step.forecast
    if known is None or step.is_over:
        return ""
    given_up = [f"{short_id(request)} of worker {worker}" for worker, request in known.will_not_end]
    said = f"{listed(given_up, _NAMED)} will not end" if given_up else ""
    if known.is_stuck:
        return said
    ends = f"ends in {duration(known.low_sec)} to {duration(known.high_sec)}"
    if known.decides is not None:
        ends += f"; {short_id(known.decides[1])} of worker {known.decides[0]} decides"
    return f"{said}; without that, the step {ends}" if said else ends


def short_id(text: str) -> str:
    """Return a text with the first 8 characters of each UUID in it: commands take the begin of an id."""
    return _UUID.sub(r"\1", text)


def problem(shown: Problem, at_us: int) -> str:
    """Return a problem with its age."""
    age_sec = max(0.0, (at_us - shown.since_us) / 1e6)
    lasts = f" ({duration(age_sec)})" if shown.kind in ("hang", "death") else ""
    return f"{shown.kind}: {short_id(shown.sentence)}{lasts}"


def worker_name(worker: WorkerNow) -> str:
    """Return "3", or "trainer 0" for another role than a rollout worker."""
    return str(worker.worker) if worker.role == "worker" else f"{worker.role} {worker.worker}"


def worker_state(worker: WorkerNow) -> str:
    """Return what a worker does: "runs", "waits for 3", "hangs"."""
    return f"{worker.state} for {worker.waits_for}" if worker.waits_for is not None else worker.state


def request_turn(request: OpenRequest) -> int | None:
    """Return the turn of a request as people count, from 1."""
    return None if request.turn is None else request.turn + 1


def request_event(request: OpenRequest) -> str | None:
    """Return the innermost span in which a request is, with its tool: "tool_call search"."""
    return (
        request.event if request.event is None or request.tool is None else f"{request.event} {request.tool}"
    )


def ledger_rows(done: Sequence[StepDone], steps: int) -> list[tuple[str, str, float]]:
    """Return a row for each large part of the last steps' ledgers: its name, a sparkline, its newest seconds.

    All rows have one scale, so that they can be compared.
    """
    shown = [step for step in done if not step.validate][-steps:]
    sums: dict[str, float] = {}
    for step in shown:
        for part, sec in step.ledger.items():
            sums[part] = sums.get(part, 0.0) + sec
    parts = sorted(sums, key=lambda part: -sums[part])
    rows = {part: [step.ledger.get(part, 0.0) for step in shown] for part in parts[:_PARTS]}
    if len(parts) > _PARTS:
        rows[_REST] = [sum(step.ledger.get(part, 0.0) for part in parts[_PARTS:]) for step in shown]
    top = max((max(values) for values in rows.values()), default=0.0)
    return [(part, sparkline(values, top), values[-1]) for part, values in rows.items()]


def bar(step: StepNow, width: int) -> str:
    """Return a bar of the requests that ended."""
    whole = step.requests_expected or step.requests_done + step.requests_open
    filled = round(width * min(1.0, step.requests_done / whole)) if whole else 0
    return "█" * filled + "░" * (width - filled)
