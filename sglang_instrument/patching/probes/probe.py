"""Make probes: rewritten code calls its probe, a constant of the code, to begin a run of a region.

`contract.py` describes the calls. A region without fields costs as much as a plain span, because the call of
its probe runs in C; each feature that a table asks for adds only its own cost.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from sglang_instrument.patching.pickling import NO_PROBE, reduce_with_stand_in
from sglang_instrument.patching.probes import contract, finished_regions
from sglang_instrument.patching.probes.interval import Interval
from sglang_instrument.patching.probes.outermost import begin_outermost
from sglang_instrument.patching.probes.plan import RegionPlan, make_plan, wanted_events
from sglang_instrument.patching.probes.region_spans import (
    SKIPPED,
    RegionSpan,
    Values,
    begin_simple_run,
    begin_span,
)
from sglang_instrument.patching.probes.settings_probe import SettingsProbe
from sglang_instrument.patching.probes.step_counter import new_request_id
from sglang_instrument.patching.probes.tracker_probe import TrackerProbe
from sglang_instrument.patching.tables.regions import Origin, Overriding, Region
from sglang_instrument.recording.measure import context, identity, spans
from sglang_instrument.recording.measure.context import Bound
from sglang_instrument.recording.measure.spans import Span


class Probe(partial[Any]):
    """A constant of a code object that begins a run of its region when called with `enter_locals`.

    It is a `partial`, because the call of a `partial` that makes a Struct runs no Python code. It pickles as
    its region, because the code that is pickled with it was made for this region. Without this package it
    unpickles as a stand-in: see `pickling.py`.

    Attributes:
        exit_locals: The locals that the exit fields read.
        item_locals: The exit locals of a generator region with `ends`, else empty.
        error_locals: The locals that fields read after an exception.
    """

    region: Region
    is_read_by_others: bool
    plan: RegionPlan
    counts: bool = False  # the probe is that of a coroutine
    _counted: "Probe | None" = None
    enter_locals: tuple[str, ...] = ()
    exit_locals: tuple[str, ...] = ()
    item_locals: tuple[str, ...] = ()
    error_locals: tuple[str, ...] = ()
    wants_result: bool = False
    wants_items: bool = False
    is_instant: bool = False
    assigns: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        make = _counted if self.counts else make_probe
        return reduce_with_stand_in(NO_PROBE, make, self.region, self.is_read_by_others)

    def counted(self) -> "Probe":
        """Return the region's probe for a coroutine that counts its awaits; the same object each time."""
        if self._counted is None:
            self._counted = _with_contract(
                _new_probe(self.plan, self.region, waited=0), self.region, self.plan
            )
            self._counted.counts = True
        return self._counted


_probes: dict[tuple[Origin, Overriding | None, bool], Probe] = {}


def probes_for(regions: Iterable[Region]) -> Callable[[Region], contract.ProbeContract]:
    """Return a function that makes the probes of `regions`, which may read one another through `inside`."""
    wanted = wanted_events(regions)

    def make(region: Region) -> contract.ProbeContract:
        if region.settings:
            return SettingsProbe(region)
        if region.tracker is not None:
            return TrackerProbe(region)
        return make_probe(region, region.event in wanted)

    return make


def make_probe(region: Region, is_read_by_others: bool = False) -> Probe:
    """Return the probe of a region; the same object each time.

    Args:
        region: The region, as read from a table.
        is_read_by_others: Whether another region reads this event through `inside`.

    Raises:
        TableError: A field expression is not in the language; names the table, the region and the key.
    """
    key = (region.origin, region.overriding, is_read_by_others)
    known = _probes.get(key)
    if known is not None and known.region == region:
        return known
    probe = _probes[key] = build_probe(region, is_read_by_others)
    return probe


def build_probe(region: Region, is_read_by_others: bool = False) -> Probe:
    """Return a new probe of a region; `make_probe` caches it."""
    plan = make_plan(region, is_read_by_others)
    return _with_contract(_new_probe(plan, region), region, plan)


def _with_contract(probe: Probe, region: Region, plan: RegionPlan) -> Probe:
    """Set the attributes that the rewriter reads, and return the probe."""
    probe.region, probe.is_read_by_others, probe.plan = region, plan.is_read_by_others, plan
    receiver = () if region.overriding is None else (region.overriding.receiver,)
    probe.enter_locals, probe.exit_locals = (*receiver, *plan.enter_locals), plan.exit_locals
    probe.error_locals = plan.error_locals
    probe.item_locals = () if plan.ends is None else plan.exit_locals
    probe.wants_result, probe.wants_items = plan.wants_result, plan.generator
    probe.is_instant = plan.emit == "enter"
    return probe


def _counted(region: Region, is_read_by_others: bool) -> Probe:
    return make_probe(region, is_read_by_others).counted()


def _new_probe(plan: RegionPlan, region: Region, waited: int | None = None) -> Probe:
    """Return a probe that does only what `plan` needs at entry; `waited=0`: its spans count awaits."""
    probe = _probe_of(plan, waited)
    if region.overriding is None:
        return probe
    return Probe(begin_outermost, region.origin, region.overriding, plan, partial(probe.func, *probe.args))


def _probe_of(plan: RegionPlan, waited: int | None) -> Probe:
    if plan.is_plain:
        return Probe(spans.begin, plan.kind, plan.event, plan.phase, waited)
    of_span = (plan.event, plan.phase, waited, plan.enter)
    begin: partial[Any] = partial(begin_simple_run, plan, *of_span, plan.only_reads)
    if not plan.begins_simply:
        begin = partial(_begin_run, plan, waited)
    elif plan.only_reads_at_entry:
        begin = partial(begin_span, *of_span)
    interval = None if plan.every is None else Interval(plan.every)
    if interval is not None:
        begin = partial(_begin_interval, interval, begin)
    if plan.is_conditional:
        begin = partial(_begin_if_wanted, plan, begin)
    return Probe(begin) if interval is None else Probe(_begin_at_times, interval, begin)


def _begin_at_times(interval: Interval, begin: Callable[..., Any], *values: Any) -> Any:
    """Record a run of an instant region, unless one was recorded a short time ago."""
    return begin(*values) if interval.is_over() else SKIPPED


def _begin_interval(interval: Interval, begin: Callable[..., Any], *values: Any) -> Any:
    """Record a run that no condition leaves out: the next interval begins."""
    interval.begin()
    return begin(*values)


def _begin_if_wanted(plan: RegionPlan, begin: Callable[..., Any], *values: Any) -> Any:
    """Begin a run of a region, if it is to be recorded; else return `SKIPPED`."""
    try:
        if not _is_wanted(plan, values):
            return SKIPPED
    except BaseException:
        spans.drop_record("the probe of", plan.event)
        return SKIPPED
    return begin(*values)


def _begin_run(plan: RegionPlan, waited: int | None, *values: Any) -> Any:
    """Begin a run of a region that needs more than a span at its start."""
    bound = None
    try:
        if plan.binds:
            bound = _bind(plan, values)
        extra = None if plan.enter is None else plan.enter(None, *values)
        if plan.emit == "enter":
            spans.record(Span(plan.event, extra, plan.phase))
            return SKIPPED
        run = RegionSpan(plan.kind(plan.event, extra, plan.phase, waited), plan)
        run.bound = bound
        if plan.keeps_inner_records:
            run.inside = finished_regions.collect(plan.wants_inside, plan.root)
        return run
    except BaseException:
        if bound is not None:
            bound.pop()
        spans.drop_record("the probe of", plan.event)
        return SKIPPED


def _is_wanted(plan: RegionPlan, values: Values) -> bool:
    """Return whether to record this run; first give the values of `process` to `identity`."""
    if plan.when is not None and not plan.when(None, *values):
        return False
    if plan.process is not None and not identity.knows_all_of(plan):
        facts = plan.process(None, *values)
        identity.learn(**facts, teller=plan if plan.process_keys == facts.keys() else None)
    return plan.leader is None or plan.leader(None, *values)


def _bind(plan: RegionPlan, values: Values) -> Bound:
    """Bind the ids that the table names; a root inherits none."""
    changes = {} if plan.bind is None else plan.bind(None, *values)
    if plan.steps is not None:
        changes = plan.steps.name_step(changes)
    if plan.new_request and changes.get("request_id") is None:
        changes = {**changes, "request_id": new_request_id()}
    return context.push(changes, plan.root)
