"""Compile a region of a table into the plan of its probe: readers, and the locals that they need."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sglang_instrument.errors import TableError
from sglang_instrument.patching.probes.field_readers import (
    Condition,
    Reader,
    condition,
    local_arguments,
    locals_of,
    reader,
)
from sglang_instrument.patching.probes.step_counter import StepCount, step_count
from sglang_instrument.patching.tables.field_language import ITEM, LAST, RESULT, Expression, Moment, parsed
from sglang_instrument.patching.tables.regions import Emit, Region
from sglang_instrument.recording.measure.spans import Span, WatchedSpan, kind_for


@dataclass(frozen=True, slots=True, eq=False)
class RegionPlan:
    """What a probe does at the start and the end of a region; a reader without fields is None.

    `every`: the fewest seconds from record to record. `is_conditional`: a condition decides whether a run
    is recorded. `binds`: a run binds ids. `keeps_inner_records`: a run keeps the records of the regions
    that finish inside it. `is_read_by_others`: another region reads this event through `inside` or `last`.
    `wants_inside`: the events that this one reads through `inside`. `late_fields`: the exit fields that
    read no value of the program, only records. `item`: reads the exit fields that read a generator's item,
    the `item_fields`, at each item.
    """

    event: str
    emit: Emit = "span"
    phase: str | None = None
    kind: type[Span] = Span
    watched: bool = False
    root: bool = False
    every: float | None = None
    is_conditional: bool = False
    binds: bool = False
    keeps_inner_records: bool = False
    generator: bool = False
    is_read_by_others: bool = False
    captures: bool = False
    when: Condition | None = None
    leader: Condition | None = None
    bind: Reader | None = None
    process: Reader | None = None
    process_keys: frozenset[str] = frozenset()
    steps: StepCount | None = None
    new_request: bool = False
    enter: Reader | None = None
    exit: Reader | None = None
    exit_after_error: Reader | None = None
    ends: Condition | None = None
    enter_locals: tuple[str, ...] = ()
    exit_locals: tuple[str, ...] = ()
    error_locals: tuple[str, ...] = ()
    wants_result: bool = False
    wants_item: bool = False
    wants_inside: frozenset[str] = frozenset()
    late_fields: frozenset[str] = frozenset()
    item: Reader | None = None
    item_fields: frozenset[str] = frozenset()

    @property
    def is_plain(self) -> bool:
        """Whether a plain span is enough."""
        reads = self.enter or self.exit or self.is_conditional or self.generator
        return not (reads or self._does_more_at_entry or self._does_more_later)

    @property
    def begins_simply(self) -> bool:
        """Whether a run that is wanted only makes an unwatched span and reads fields at its start."""
        return not (self.watched or self._does_more_at_entry)

    @property
    def only_reads(self) -> bool:
        """Whether a run begins simply, and at its end only reads fields and counts a generator's items."""
        return self.begins_simply and not self._does_more_later

    @property
    def only_reads_at_entry(self) -> bool:
        """Whether a run begins simply, and ends as a span does."""
        return self.only_reads and self.exit is None and not self.generator

    @property
    def _does_more_at_entry(self) -> bool:
        return self.binds or self.keeps_inner_records or self.emit == "enter"

    @property
    def _does_more_later(self) -> bool:
        return self.captures or self.is_read_by_others or self.emit != "span"


class _Expressions(NamedTuple):
    """The expressions of a region, by key and name; `exit` has those of `always`, too."""

    when: dict[str, Expression]
    leader: dict[str, Expression]
    bind: dict[str, Expression]
    process: dict[str, Expression]
    enter: dict[str, Expression]
    always: dict[str, Expression]
    exit: dict[str, Expression]
    ends: dict[str, Expression]


def check_region(region: Region) -> None:
    """Check the expressions of a region, without compiling their readers.

    Raises:
        TableError: An expression is invalid or not allowed there; the message names the region and the key.
    """
    _expressions_of(region)


def _expressions_of(region: Region) -> _Expressions:
    leaving: Moment = "item" if region.generator else "exit"
    always = _parse(region, "always", region.always, leaving)
    expressions = _Expressions(
        when=_parse(region, "when", _optional(region.when), "enter"),
        leader=_parse(region, "leader", _optional(region.leader), "enter"),
        bind=_parse(region, "bind", region.bind, "enter"),
        process=_parse(region, "process", region.process, "enter"),
        enter=_parse(region, "enter", region.enter, "enter"),
        always=always,
        exit={**always, **_parse(region, "exit", region.exit, leaving)},
        ends=_parse(region, "ends", _optional(region.ends), leaving),
    )
    if region.generator and (_binds(region) or _events(expressions.exit.values())):
        raise _error(region, "a generator region cannot bind, be a root or read `inside`")
    return expressions


def _binds(region: Region) -> bool:
    return bool(region.bind or region.count_steps or region.new_request or region.root)


def make_plan(region: Region, is_read_by_others: bool = False) -> RegionPlan:
    """Compile a region; errors are those of `check_region`."""
    when, leader, bind, process, enter, always, exit_, ends = _expressions_of(region)
    after_error = {
        **always,
        **{name: expression for name, expression in exit_.items() if expression.survives_error},
    }
    error_locals = locals_of(after_error.values())
    of_item = {name: expression for name, expression in exit_.items() if ITEM in expression.roots}
    at_entry = (when, leader, bind, process, enter)
    entering = locals_of([expression for fields in at_entry for expression in fields.values()])
    leaving_locals = locals_of([*exit_.values(), *ends.values()])
    wants_inside = _events(exit_.values())
    kind = kind_for(region.event, region.phase, region.sync) if region.emit == "span" else Span
    return RegionPlan(
        event=region.event,
        emit=region.emit,
        phase=region.phase,
        kind=kind,
        watched=issubclass(kind, WatchedSpan),
        root=region.root,
        every=region.every,
        is_conditional=bool(when or process or leader),
        binds=_binds(region),
        keeps_inner_records=bool(wants_inside) or region.root,
        generator=region.generator,
        is_read_by_others=is_read_by_others,
        captures=bool(region.capture),
        when=condition(when, local_arguments(entering)),
        leader=condition(leader, local_arguments(entering)),
        steps=step_count(region.origin.table) if region.count_steps else None,
        new_request=region.new_request,
        bind=reader(bind, local_arguments(entering)),
        process=reader(process, local_arguments(entering)),
        process_keys=frozenset(process),
        enter=reader(enter, local_arguments(entering)),
        exit=reader(exit_, local_arguments(leaving_locals)),
        exit_after_error=reader(after_error, local_arguments(error_locals)),
        ends=condition(ends, local_arguments(leaving_locals)),
        enter_locals=entering,
        exit_locals=leaving_locals,
        error_locals=error_locals,
        wants_result=any(RESULT in expression.roots for expression in exit_.values()),
        wants_item=any(ITEM in expression.roots for expression in [*exit_.values(), *ends.values()]),
        wants_inside=wants_inside,
        item=reader(of_item, local_arguments(leaving_locals)),
        item_fields=frozenset(of_item),
        late_fields=frozenset(name for name, expression in exit_.items() if not _reads_values(expression)),
    )


def wanted_events(regions: Iterable[Region]) -> frozenset[str]:
    """Return the events that fields of any of `regions` read through `inside` at exit, or `last` at entry."""
    wanted: set[str] = set()
    for region in regions:
        try:
            at_exit = {**region.exit, **region.always}
            wanted |= _events(
                _parse(region, "exit", at_exit, "item" if region.generator else "exit").values()
            )
            for text in [*region.bind.values(), *region.enter.values()]:
                wanted |= parsed(text, "enter").last_events if f"{LAST}." in text else frozenset()
        except TableError:  # reported when this region's probe is made; it must not stop the other regions
            continue
    return frozenset(wanted)


def _reads_values(expression: Expression) -> bool:
    return bool(expression.locals) or not expression.roots.isdisjoint({RESULT, ITEM})


def _events(expressions: Iterable[Expression]) -> frozenset[str]:
    return frozenset().union(*(expression.events for expression in expressions))


def _optional(text: str | None) -> dict[str, str]:
    return {} if text is None else {"": text}


def _parse(region: Region, key: str, fields: Mapping[str, str], moment: Moment) -> dict[str, Expression]:
    try:
        return {name: parsed(text, moment) for name, text in fields.items()}
    except TableError as error:
        raise _error(region, f"{key}: {error}") from None


def _error(region: Region, message: str) -> TableError:
    table, patch, number = region.origin
    return TableError(f"{table}: patch {patch + 1}: region {number + 1} ({region.event}): {message}")
