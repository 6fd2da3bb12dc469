"""Measure one execution (run) of a region: take values from its code, and read the fields when it ends.

A run refers to the program's objects only while its block is open; its span, which becomes the record, never
does. Nothing here raises into the function: a failing step is skipped, counted and reported once.
"""

from time import perf_counter_ns
from types import TracebackType
from typing import Any, Final

from msgspec import Struct

from sglang_instrument import native
from sglang_instrument.patching.probes import finished_regions
from sglang_instrument.patching.probes.field_readers import Reader
from sglang_instrument.patching.probes.finished_regions import RegionRecords
from sglang_instrument.patching.probes.plan import RegionPlan
from sglang_instrument.patching.tables.field_functions import UNBOUND
from sglang_instrument.recording.measure import spans
from sglang_instrument.recording.measure.context import Bound
from sglang_instrument.recording.measure.losses import log_swallowed_now
from sglang_instrument.recording.measure.spans import Span

Values = tuple[Any, ...]


class RegionSpan(Struct, eq=False):
    """One execution of a region, called its run here.

    `values` are the exit locals at the last statement, `error_values` the error locals when an exception
    passed; `value` is the returned value or the item. `fields` are exit fields that were read before the last
    statements ran, `item_fields` those of the newest item. `bound` are the ids that the region bound, and
    `inside` the regions that finished inside it. For a generator, `items` counts the items, and `first_item`
    is the time of the first; `finished`: the region ended at an item, before its block.
    """

    span: Span
    plan: RegionPlan
    values: Values | None = None
    error_values: Values | None = None
    fields: dict[str, Any] | None = None
    item_fields: dict[str, Any] | None = None
    value: Any = None
    bound: Bound | None = None
    inside: RegionRecords | None = None
    items: int = 0
    first_item: int = 0
    finished: bool = False

    def __enter__(self) -> "RegionSpan":
        self.span.__enter__()
        return self

    def __exit__(
        self, error: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave_run(self, error, value)

    def leave(self, *values: Any) -> None:
        """Take the values of the exit locals, at the region's last statement."""
        self.values = values

    def fail(self, *values: Any) -> None:
        """Take the values of the error locals, when an exception passes."""
        self.error_values = values

    def leave_result(self, result: Any, *values: Any) -> Any:
        """Take the returned value and the values of the exit locals; return the returned value."""
        self.value = result
        self.values = values
        return result

    def leave_early(self, *values: Any) -> None:
        """Read the exit fields, because a `finally` or a `with` follows that may drop the values."""
        read_early(self, None, values)

    def leave_result_early(self, result: Any, *values: Any) -> Any:
        """As `leave_early`, also with the returned value; return it."""
        read_early(self, result, values)
        return result

    def capture(self, name: str, value: Any) -> Any:
        """Record the argument of a call inside the region as a field; return it."""
        capture_value(self, name, value)
        return value

    def item(self, item: Any, *values: Any) -> Any:
        """Count a yielded item; `values` are the exit locals, for `ends`; return the item."""
        count_item(self, item, values)
        return item

    @property
    def duration_sec(self) -> float:
        """Wall time in seconds; up to now while the region is open."""
        return self.span.duration_sec


class Skipped:
    """A run that records nothing."""

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

    leave_early, leave_result_early = leave, leave_result

    def capture(self, name: str, value: Any) -> Any:
        """Return the value."""
        return value

    def item(self, item: Any, *values: Any) -> Any:
        """Return the item."""
        return item


SKIPPED: Final = Skipped()


def begin_simple_run(
    plan: RegionPlan,
    event: str,
    phase: str | None,
    waited: int | None,
    enter: Reader | None,
    only_reads: bool,
    *values: Any,
) -> RegionSpan | Skipped:
    """Begin a run of a region that needs only a span at its start, with the fields that `enter` reads.

    `only_reads` is `plan.only_reads`: the compiled twin then calls Python only to read fields.
    """
    try:
        extra = None if enter is None else enter(None, *values)
        return RegionSpan(Span(event, extra, phase, waited), plan)
    except BaseException:
        spans.drop_record("the probe of", event)
        return SKIPPED


def begin_span(
    event: str, phase: str | None, waited: int | None, enter: Reader | None, *values: Any
) -> Span | Skipped:
    """Begin a run of a region that needs only a span with the fields that `enter` reads."""
    try:
        extra = None if enter is None else enter(None, *values)
        return Span(event, extra, phase, waited)
    except BaseException:
        spans.drop_record("the probe of", event)
        return SKIPPED


def leave_run(run: RegionSpan, error: type[BaseException] | None, value: BaseException | None) -> None:
    """End a run when its block is left."""
    try:
        if run.finished:  # already ended at an item
            run.values = run.error_values = run.value = None
        elif error is GeneratorExit and run.plan.generator:  # the consumer closed the generator
            _end(run, None, None)
        else:
            _end(run, error, value)
    except BaseException:
        spans.drop_record("recording a span")


def count_item(run: RegionSpan, item: Any, handed: Values) -> None:
    """Count an item of a generator, and end its run if this is the last one.

    A consumer may close a generator long after the last item that it needs, or never exhaust it.
    """
    try:
        if not run.items:
            run.first_item = perf_counter_ns()
        run.items += 1
        plan = run.plan
        if run.finished:
            return
        if plan.wants_item:
            run.value = item
        if plan.ends is not None:
            values = handed or run.values or _unbound(plan.exit_locals)
            if plan.ends(run, *values):
                run.finished = True
                run.values, run.item_fields = values, None  # the exit fields read the values, too
                _end(run, None, None)
        if plan.item is not None and not run.finished:
            read_item(run, handed)
    except BaseException:
        _log_swallowed(run)
    finally:
        run.value = None


def read_item(run: RegionSpan, handed: Values) -> None:
    """Read the exit fields of an item; the next one may come late, or never."""
    plan = run.plan
    if plan.item is not None:
        run.item_fields = plan.item(run, *(handed or run.values or _unbound(plan.exit_locals)))


def read_early(run: RegionSpan, result: Any, values: Values) -> None:
    """Read the exit fields of a run whose last statements are still to come; release the values."""
    try:
        run.value = result
        if run.plan.exit is not None and not run.finished:
            run.fields = run.plan.exit(run, *values)
    except BaseException:
        _log_swallowed(run)
    finally:
        run.value = None


def capture_value(run: RegionSpan, name: str, value: Any) -> None:
    """Record a value as a field of an open run."""
    try:
        run.span.add(**{name: value})
    except BaseException:
        _log_swallowed(run)


def _end(run: RegionSpan, error: type[BaseException] | None, value: BaseException | None) -> None:
    """Read the fields of a run, give its span to the buffer and its record to enclosing runs, and unbind."""
    plan, span, inside = run.plan, run.span, run.inside
    try:
        span.stop(error, value)
        if inside is not None:
            finished_regions.detach(inside)
        _read(run, error is not None)
        if plan.emit == "span":
            spans.append_to_buffer(span)
        elif error is None:  # an instant event says that the region was completed
            spans.record(Span(span.event, span.extra, span.phase, context=span.context))
    except BaseException:
        spans.drop_record("the probe of", span.event)
    finally:
        _let_go(run)


def _read(run: RegionSpan, failed: bool) -> None:
    """Read the fields of a run that has ended."""
    plan, span = run.plan, run.span
    if failed:  # other locals may be left from an earlier turn
        reader, values, names = plan.exit_after_error, run.error_values, plan.error_locals
    else:
        reader, values, names = plan.exit, run.values, plan.exit_locals
    if reader is not None:
        fields = reader(run, *(values or _unbound(names)))
        if run.fields is not None and not failed and values is None:
            late = {name: fields[name] for name in plan.late_fields & fields.keys()}
            fields = {
                name: value for name, value in run.fields.items() if name not in plan.late_fields
            } | late
        if run.item_fields is not None and not failed:
            others = {name: value for name, value in fields.items() if name not in plan.item_fields}
            fields = others | run.item_fields
        span.extra = fields if span.extra is None else {**span.extra, **fields}
    if plan.generator:
        counted: dict[str, Any] = {"items": run.items}
        if run.items:
            counted["first_item_sec"] = (run.first_item - span.start) / 1e9
        span.extra = {**counted, **(span.extra or {})}


def _let_go(run: RegionSpan) -> None:
    plan, span = run.plan, run.span
    if plan.watched:
        spans.note_closed(span)
    run.values = run.error_values = run.fields = run.item_fields = run.value = None
    inside, run.inside, bound, run.bound = run.inside, None, run.bound, None
    try:
        if inside is not None:
            finished_regions.discard(inside)
            if not inside.ended:  # an error prevented it above
                finished_regions.detach(inside)
        if plan.is_read_by_others and plan.emit == "span":
            finished_regions.report(span)
    except BaseException:
        _log_swallowed(run)
    if bound is not None:  # after the record is kept: pop() may end the record's step
        try:
            bound.pop()
        except BaseException:
            _log_swallowed(run)


def _log_swallowed(run: RegionSpan) -> None:
    """Count and report the error that is being handled."""
    try:
        log_swallowed_now(f"the probe of {run.span.event}")
    except MemoryError:  # making the message
        pass


def _unbound(names: tuple[str, ...]) -> Values:
    """Return UNBOUND for each name: the rewritten code handed no values over.

    If the rewriter may add no local, the code hands nothing over. Reading the frame instead is no way out:
    before Python 3.13 that changes the dict which the function's own `locals()` returned.
    """
    return (UNBOUND,) * len(names)


native.use_compiled(globals(), "RegionSpan", "begin_simple_run", "begin_span")
