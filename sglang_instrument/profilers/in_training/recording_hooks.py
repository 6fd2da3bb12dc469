"""Connect the profiling schedule of a run to the recording: steps that begin, spans that stay open."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from sglang_instrument.config import Config
from sglang_instrument.patching.tables.about import read_abouts
from sglang_instrument.profilers.in_training.plan import ProfilePlan, read_plan
from sglang_instrument.profilers.in_training.run_captures import Captures
from sglang_instrument.profilers.in_training.schedule import Schedule
from sglang_instrument.recording.measure import context, scopes, spans
from sglang_instrument.recording.measure.identity import process_worker
from sglang_instrument.recording.measure.scopes import Scope
from sglang_instrument.recording.safety import notices
from sglang_instrument.schema import kind_of


def plan_of(config: Config) -> ProfilePlan | None:
    """Return what a run's settings ask to profile, or None.

    Raises:
        ConfigError: A setting is invalid.
    """
    return read_plan(
        config.profile_steps,
        config.profile_workers,
        config.profile_options,
        config.profile_when,
        str(config.folder / "profiles"),
    )


class Scheduled:
    """The profiling schedule of one session.

    Raises:
        ConfigError: A setting is invalid.
    """

    def __init__(self, config: Config) -> None:
        plan = plan_of(config)
        read_abouts()  # cached: later the trainer's thread needs it, which must not wait for a disk
        self._schedule: Schedule | None = None
        if plan is not None:
            new_captures = partial(
                Captures,
                plan,
                experiment=config.experiment,
                run_id=config.run_id,
                folder=config.folder,
                say=notices.notice,
                note=_note,
            )
            self._schedule = Schedule(
                plan,
                new_captures=new_captures,
                router=config.profile_router,
                say=notices.notice,
                open_spans=_open_spans,
            )

    def start(self) -> None:
        """Subscribe to the beginnings and ends of steps."""
        if self._schedule is not None:
            scopes.on_steps(self._began, self._left)

    def stop(self, wait_sec: float = 0.0) -> None:
        """Unsubscribe, and stop profilers that run; wait at most this long."""
        scopes.on_steps(None, None)
        if self._schedule is not None:
            self._schedule.stop(wait_sec)

    def restart_in_child(self) -> None:
        """Continue in a forked child, which has not inherited the parent's thread."""
        if self._schedule is not None:
            self._schedule.restart_in_child()

    def _began(self, scope: Scope) -> None:
        if self._schedule is not None:
            self._schedule.began(scope.step, scope.worker, scope.validate, lambda: scope.open > 0)

    def _left(self, scope: Scope) -> None:
        if self._schedule is not None:
            self._schedule.ended(scope.step, scope.worker, scope.validate, lambda: scope.open > 0)


def _note(step: int, worker: int, fields: Mapping[str, Any]) -> None:
    """Log `profile_start` in the step's file without opening the step, which may be ending."""
    bound = context.derive(context.UNBOUND, {"step": step, "worker": worker})
    token = context.CURRENT.set(bound)
    try:
        spans.event("profile_start", **fields)
    finally:
        context.CURRENT.reset(token)


def _open_spans() -> list[tuple[str, str, float, int, int, Mapping[str, Any]]]:
    """Return (phase, event, age in seconds, step, worker, ids) of open spans, the oldest first."""
    now = time.perf_counter_ns()
    rows = []
    for span in list(spans.OPEN.values()):
        phase, scope = span.phase or kind_of(span.event).phase, span.context
        age = (now - span.start) / 1e9
        worker = process_worker() if scope.worker is None else scope.worker
        rows.append((phase, span.event, age, scope.step or 0, worker, dict(scope.extra or {})))
    return sorted(rows, key=lambda row: -row[2])
