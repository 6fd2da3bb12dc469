"""Be one run of a region: a span that is handed locals by rewritten code and reads its fields when it ends.

Nothing here raises into the function: what fails is skipped, counted and said once (`notices.swallowed`). The
common case, fields at exit and nothing else, has its own short way; everything else is in `FullSpan`. The
compiled classes of `native/runs.pyx` take the place of these where they are built.
"""

from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, cast

from sglang_instrument import native
from sglang_instrument.patching import inside
from sglang_instrument.patching.inside import Inside
from sglang_instrument.patching.measures import UNBOUND
from sglang_instrument.patching.plan import Plan
from sglang_instrument.recording import device, spans
from sglang_instrument.recording.context import Bound
from sglang_instrument.recording.notices import swallowed
from sglang_instrument.recording.open_spans import note_closed, note_open
from sglang_instrument.recording.spans import PureSpan as Span
from sglang_instrument.recording.tasks import leave_task

Values = tuple[Any, ...]


class RegionSpan(Span, gc=False, eq=False):
    """One run of a region that reads fields when it ends.

    `plan` says what to read; `values` are the locals at the last statement, `error_values` those when an
    exception passed, `value` what is returned. Between that and its end a coroutine may wait, and what they
    lead to may lead back to it: there, and wherever they are held for long, a run is one that the collector
    sees, and only its block holds it until it ends.
    """

    values: Values | None = None
    error_values: Values | None = None
    value: Any = None

    def __exit__(
        self, error: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.end = perf_counter_ns()
            if error is not None:
                self.error = spans.name_error(error, value)
            if self.waited is not None:
                leave_task(self)
            values, reader = self.values, self.plan.exit
            if values is None or reader is None or error is not None or self.extra is not None:
                read(self, error is not None)
            else:
                self.extra = reader(self, *values)
                self.values = self.value = None
            spans.buffer.append(self)
        except BaseException:
            self.values = self.value = None
            spans.lose("the probe of", self.event)

    def leave(self, *values: Any) -> None:
        """Take the locals that the exit fields read, as they are at the region's last statement."""
        self.values = values

    def fail(self, *values: Any) -> None:
        """Take the locals that are read after an exception, as they are when it passes."""
        self.error_values = values

    def leave_result(self, result: Any, *values: Any) -> Any:
        """Take the returned value and the locals; return the former."""
        self.value = result
        self.values = values
        return result

    def capture(self, name: str, value: Any) -> Any:
        """Take the argument of a call within the region as a field; return it."""
        try:
            self.add(**{name: value})
        except BaseException as failure:
            _swallow(self.event, failure)
        return value


class ReportingSpan(RegionSpan, gc=False, eq=False):
    """One run of a region that another one reads through `inside`."""

    def __exit__(
        self, error: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        RegionSpan.__exit__(self, error, value, trace)
        _report(self)


class AwaitingSpan(RegionSpan, gc=True, eq=False):
    """One run of a region of a coroutine."""


class ReportingAwaitingSpan(ReportingSpan, gc=True, eq=False):
    """The same, which another one reads through `inside`."""


class FullSpan(RegionSpan, gc=True, eq=False):
    """One run of a region that binds, collects, reports, is watched, synchronises the GPU or is a point."""

    place: int = 0  # as of a WatchedSpan
    bound: Bound | None = None
    inside: Inside | None = None

    def __enter__(self) -> "FullSpan":
        try:
            plan: Plan = self.plan
            if plan.synced:
                device.synchronize()
                self.start = perf_counter_ns()
            Span.__enter__(self)
            if plan.watched:
                self._be_watched()
        except BaseException as failure:
            _swallow(self.event, failure)
        return self

    def _be_watched(self) -> None:
        """Let what stands for this run be known as open: the run itself holds what the program gave it."""
        known = Span(self.event, self.extra, None, self.phase, None, self.context, self.thread, self.start)
        known.task = self.task
        note_open(self, known)

    def __exit__(
        self, error: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and self.plan.synced:
                device.synchronize()
            self.end = perf_counter_ns()
            if error is not None:
                self.error = spans.name_error(error, value)
        except BaseException:
            try:
                spans.lose("the probe of", self.event)
            finally:
                _let_go(self, self.plan)
        else:
            finish(self, error is not None)


class GeneratorSpan(FullSpan, gc=True, eq=False):
    """One run of a generator: ends at the item that the table calls the last, else with the generator.

    A consumer may drop a generator long after the last item it wants, or never run it to its end.
    """

    items: int = 0
    first_item: int = 0
    finished: bool = False

    def __exit__(
        self, error: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.finished:
            self.values = self.error_values = self.value = None  # what was handed over since
            return
        if error is GeneratorExit:  # the consumer has seen enough; nothing went wrong
            error = value = None
        FullSpan.__exit__(self, error, value, trace)

    def item(self, item: Any, *values: Any) -> Any:
        """Count an item on its way out, with the locals that say whether it is the last; return it."""
        try:
            self._count(item, values)
        except BaseException as failure:
            _swallow(self.event, failure)
        return item

    def _count(self, item: Any, handed: Values) -> None:
        if not self.items:
            self.first_item = perf_counter_ns()
        self.items += 1
        if self.finished:
            return
        plan: Plan = self.plan
        if plan.wants_item:
            self.value = item
        if plan.ends is not None:
            values = handed or _or_unbound(self.values, plan.exit_locals)
            if holds(plan.ends(self, *values)):
                self.end = perf_counter_ns()
                self.finished = True
                self.values = values  # which the fields at exit read, too
                finish(self, False)


class Skipped:
    """A run of which nothing is recorded."""

    __slots__ = ()

    def __enter__(self) -> "Skipped":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def leave(self, *values: Any) -> None:
        """Take nothing."""

    def fail(self, *values: Any) -> None:
        """Take nothing."""

    def leave_result(self, result: Any, *values: Any) -> Any:
        """Return the result."""
        return result

    def capture(self, name: str, value: Any) -> Any:
        """Return the value."""
        return value

    def item(self, item: Any, *values: Any) -> Any:
        """Return the item."""
        return item


SKIPPED: Final = Skipped()


def holds(condition: dict[str, Any]) -> bool:
    """Return whether a condition was met; one that could not be read was not."""
    return any(condition.values())


def read(run: RegionSpan, failed: bool) -> None:
    """Read the fields of a run that has ended, and let go of what they were read from."""
    plan: Plan = run.plan
    if failed:  # the other locals may be those of an earlier turn
        reader, values = plan.exit_after_error, _or_unbound(run.error_values, plan.error_locals)
    else:
        reader, values = plan.exit, _or_unbound(run.values, plan.exit_locals)
    if reader is not None:
        fields = reader(run, *values)
        run.extra = fields if run.extra is None else {**run.extra, **fields}
    run.values = run.error_values = run.value = None


def finish(run: FullSpan, failed: bool) -> None:
    """Read the fields of a run, give it to the buffer and to those around it, and unbind what it bound."""
    plan: Plan = run.plan
    try:
        if run.waited is not None:
            leave_task(run)
        if run.inside is not None:
            inside.stop(run.inside)
        if plan.exit is not None:
            read(run, failed)
        if plan.generator:
            _count_items(cast("GeneratorSpan", run))
        if plan.emit == "exit":
            if not failed:  # a point says that something happened
                spans.record(Span(run.event, run.extra, None, run.phase, context=run.context))
        else:
            spans.buffer.append(run)
    except BaseException:
        spans.lose("the probe of", run.event)
    finally:
        _let_go(run, plan)


def _let_go(run: FullSpan, plan: Plan) -> None:
    if plan.watched:
        note_closed(run)
    run.values = run.error_values = run.value = None
    own, run.inside, bound, run.bound = run.inside, None, run.bound, None
    try:
        if own is not None:
            inside.end(own)
            inside.stop(own)  # if that is not done yet
    except BaseException as failure:
        _swallow(run.event, failure)
    if plan.reports and plan.emit == "span":
        _report(run)
    try:
        if bound is not None:  # after the record is kept: this may end the step that it belongs to
            bound.pop()
    except BaseException as failure:
        _swallow(run.event, failure)


def _swallow(event: str, failure: BaseException) -> None:
    try:
        swallowed(f"the probe of {event}", failure)
    except MemoryError:  # for the text
        pass


def _report(run: RegionSpan) -> None:
    try:
        inside.report(run)
    except BaseException as failure:
        _swallow(run.event, failure)


def _count_items(run: GeneratorSpan) -> None:
    counted: dict[str, Any] = {"items": run.items}
    if run.items:
        counted["first_item_sec"] = (run.first_item - run.start) / 1e9
    run.extra = {**counted, **(run.extra or {})}


def _or_unbound(values: Values | None, names: tuple[str, ...]) -> Values:
    """Return the values of locals that were handed over, if they were.

    Rewritten code that may not add a local hands nothing over. Its frame is not read instead: before Python
    3.13 that changes the dict which the function's own `locals()` returned.
    """
    return (UNBOUND,) * len(names) if values is None else values


if not TYPE_CHECKING and native.ON:
    from sglang_instrument.native import runs as compiled

    RegionSpan, ReportingSpan = compiled.RegionSpan, compiled.ReportingSpan
    FullSpan, GeneratorSpan = compiled.FullSpan, compiled.GeneratorSpan
    Skipped, SKIPPED = compiled.Skipped, compiled.skipped
