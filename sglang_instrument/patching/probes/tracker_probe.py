"""Hand what is known of finished steps to a tracker: the probe of a region with the key `tracker`.

Rewritten code assigns `data = PROBE(data, ...)` where the region begins. The probe returns the same object,
or a copy with more entries. It records nothing.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from sglang_instrument.errors import TableError
from sglang_instrument.patching.pickling import IDENTITY, Reduced, reduce_with_stand_in
from sglang_instrument.patching.probes.field_readers import Reader, local_arguments, locals_of, reader
from sglang_instrument.patching.tables.field_language import parsed
from sglang_instrument.patching.tables.regions import Region
from sglang_instrument.recording.safety.notices import log_swallowed

_STEP_KEY: Final = "rollout/step"  # of the trainers with such a log


class Feed(Protocol):
    """Knows the numbers of finished steps."""

    def start(self) -> None:
        """Prepare, as a tracker was made in this process."""

    def along(self, data: Any, step: int, backends: Mapping[str, Any]) -> Any:
        """Return what is logged for a step, with its numbers; log numbers of earlier steps to `backends`."""


_feed: Feed | None = None


def feed_trackers(feed: Feed | None) -> None:
    """Take numbers from `feed`; None: the probes do nothing."""
    global _feed
    _feed = feed


class TrackerProbe:
    """A constant of a code object that adds numbers to what a tracker logs; see `contract.py`."""

    exit_locals: tuple[str, ...] = ()
    item_locals: tuple[str, ...] = ()
    error_locals: tuple[str, ...] = ()
    wants_result = False
    wants_items = False
    is_instant = True

    def __init__(self, region: Region) -> None:
        self.region = region
        tracker = region.tracker or {}
        self.assigns = tracker.get("data")
        self._path = tracker.get("late", "")
        self._late, *self._attributes = self._path.split(".")
        self._late_to, self._late_log = (_names(tracker.get(key, "")) for key in ("late_to", "late_log"))
        self._step, named = _step_reader(region, tracker.get("step"))
        self.enter_locals = tuple(name for name in (self.assigns, self._late, *named) if name)

    def __reduce__(self) -> Reduced:
        return reduce_with_stand_in(IDENTITY, type(self), self.region)

    def counted(self) -> "TrackerProbe":
        """Return the probe for a coroutine: the same."""
        return self

    def __call__(self, data: Any = None, *values: Any) -> Any:
        """Return `data`, or a copy with the numbers of its step. Never raise."""
        feed = _feed
        if feed is None:
            return data
        try:
            if self._step is None:
                feed.start()
                return data
            late = values[0] if self._late else None
            step = self._step(None, *values[bool(self._late) :]).get("step")
            return data if step is None else feed.along(data, step, self._backends(late))
        except BaseException as error:
            log_swallowed("giving a tracker the numbers of a step", error)
            return data

    def _backends(self, late: Any) -> dict[str, Any]:
        """Return the trackers that take earlier steps, by name."""
        for name in self._attributes:
            late = getattr(late, name, None)
        if self._late_log:
            log = next(filter(None, map(_imported, self._late_log)), None)
            return {} if log is None else {"the trainer's log": _TrainersLog(log, late)}
        if isinstance(late, dict):
            return {name: late[name] for name in self._late_to if name in late}
        return {} if late is None else {self._path: late}


class _TrainersLog:
    """A function of the trainer's, `log(args, metrics, step_key)`, as a tracker: slime's and Miles'.

    It finds the step among the metrics, so that W&B has it under its own step, too.
    """

    def __init__(self, log: Callable[..., object], args: Any) -> None:
        self._log, self._args = log, args

    def log(self, data: dict[str, Any], step: int) -> None:
        """Log the numbers of a step."""
        self._log(self._args, {**data, _STEP_KEY: step}, step_key=_STEP_KEY)


def _imported(path: str) -> Callable[..., object] | None:
    """Return the function "module:name", if the program has imported its module."""
    module, _, name = path.partition(":")
    return getattr(sys.modules.get(module), name, None)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _step_reader(region: Region, text: str | None) -> tuple[Reader | None, tuple[str, ...]]:
    """Compile the field that reads the step; return its reader and the locals that it takes."""
    if text is None:
        return None, ()
    try:
        fields = {"step": parsed(text, "enter")}
    except TableError as error:
        table, patch, number = region.origin
        raise TableError(f"{table}: patch {patch + 1}: region {number + 1}: tracker.step: {error}") from None
    named = locals_of(fields.values())
    return reader(fields, local_arguments(named)), named
