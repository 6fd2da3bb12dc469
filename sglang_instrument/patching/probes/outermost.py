"""Record a method and the methods that override it once for each call: as the outermost of them.

A method that overrides a target may call it by `super()`. Then both have a probe of the same region, and run
for the same object. The inner one records nothing; what fields read at its end completes the outer's record.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from sglang_instrument.patching.probes.plan import RegionPlan
from sglang_instrument.patching.probes.region_spans import SKIPPED, RegionSpan, Skipped, Values
from sglang_instrument.patching.tables.regions import Origin, Overriding
from sglang_instrument.recording.measure.context import put
from sglang_instrument.recording.measure.losses import log_swallowed_now
from sglang_instrument.recording.measure.spans import Span


class OutermostRun:
    """An open run of a region that several methods have; `outer` is the one around it."""

    __slots__ = ("is_open", "method", "origin", "outer", "receiver", "run")

    def __init__(self, origin: Origin, method: str, receiver: int, run: Any) -> None:
        self.origin, self.method, self.receiver, self.run = origin, method, receiver, run
        self.outer: OutermostRun | None = None
        self.is_open = False

    def __enter__(self) -> Any:
        entered = self.run.__enter__()
        try:
            self.outer = _open_around()
            put(_INNERMOST, self)
            self.is_open = True
        except BaseException:
            log_swallowed_now("an overriding method")
        return entered

    def __exit__(self, *exception: Any) -> None:
        try:
            self.is_open = False
            if _INNERMOST.get() is self:
                put(_INNERMOST, self.outer)
        except BaseException:
            log_swallowed_now("an overriding method")
        finally:
            self.run.__exit__(*exception)

    @property
    def span(self) -> Span:
        """The span that becomes the record."""
        span: Span = getattr(self.run, "span", self.run)
        return span


class InnerRun(Skipped):
    """A run inside the run of an overriding method: it records nothing, and completes that record."""

    __slots__ = ("_fields", "_outer", "_plan")

    def __init__(self, outer: OutermostRun, plan: RegionPlan) -> None:
        self._outer, self._plan = outer, plan
        self._fields: dict[str, Any] = {}

    def __exit__(self, *exception: object) -> None:
        try:
            known = self._outer.span.extra or {}
            new = {name: value for name, value in self._fields.items() if name not in known}
            if exception[0] is None:
                self._outer.span.add(**new)
        except BaseException:
            log_swallowed_now("an overridden method")

    def leave(self, *values: Any) -> None:
        """Read the fields at the last statement."""
        self._read(None, values)

    def leave_result(self, result: Any, *values: Any) -> Any:
        """Read the fields, also of the returned value; return it."""
        self._read(result, values)
        return result

    leave_early, leave_result_early = leave, leave_result

    def _read(self, result: Any, values: Values) -> None:
        try:
            run = RegionSpan(Span(self._plan.event, None, self._plan.phase), self._plan)
            run.value = result
            if self._plan.exit is not None:
                self._fields = self._plan.exit(run, *values)
        except BaseException:
            log_swallowed_now("an overridden method")


_INNERMOST: Final[ContextVar[OutermostRun | None]] = ContextVar("sglang_instrument overriding", default=None)


def begin_outermost(
    origin: Origin,
    overriding: Overriding,
    plan: RegionPlan,
    begin: Callable[..., Any],
    receiver: Any,
    *values: Any,
) -> Any:
    """Begin a run, unless one of another method is open for the same object."""
    try:
        around = _open_around()
        while around is not None:
            is_same = around.origin == origin and around.receiver == id(receiver)
            if is_same and around.method != overriding.method:
                return InnerRun(around, plan)
            around = around.outer
        run = begin(*values)
        return run if run is SKIPPED else OutermostRun(origin, overriding.method, id(receiver), run)
    except BaseException:
        log_swallowed_now("an overriding method")
        return SKIPPED


def _open_around() -> OutermostRun | None:
    """Return the innermost run that has not ended; a task may outlive the run that started it."""
    run = _INNERMOST.get()
    while run is not None and not run.is_open:
        run = run.outer
    return run
