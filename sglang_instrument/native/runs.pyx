# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, embedsignature=False, binding=False, nonecheck=True
"""Runs of regions, and what begins them, as `patching.runs` and `patching.probe` say it."""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF

import sys

from sglang_instrument.native.context cimport Bound, Context, bind_ids, bind_inside, bind_on, current_context
from sglang_instrument.native.extras cimport (
    IS_ABSENT,
    IS_INTEGER,
    IS_NANOSECONDS,
    Fields,
    Names,
    both,
    dict_of,
    names_of,
    new_fields,
    place_of,
    value_of,
)
from sglang_instrument.native.fields cimport Inside, Reader, collect, report
from sglang_instrument.native.slabs cimport be_seen_in_slabs
from sglang_instrument.native.spans cimport (
    NOT_COUNTED,
    Span,
    SyncedSpan,
    WatchedSpan,
    enter_task,
    give,
    leave_task,
    lose,
    lose_pending,
    name_of_error,
    note_closed,
    note_open,
    now_ns,
    record_point,
    swallow,
    synchronize_gpu,
)

include "stamp.pxi"

cdef extern from "Python.h":
    void PyObject_GC_Track(object) noexcept
    void PyObject_GC_UnTrack(PyObject *) noexcept
    bint PyObject_GC_IsTracked(object) noexcept

# Of the pure modules, which hand them over.
cdef object UNBOUND = None  # of measures
cdef Context NOTHING_BOUND = None  # context.UNBOUND
cdef object name_process = None
cdef object new_request_id = None
cdef object REQUEST_ID = sys.intern("request_id")
cdef object TURN = sys.intern("turn")


cdef class Does:
    """What a region does at its two ends: its plan, with everything that is asked of it at hand."""

    cdef readonly object event
    cdef readonly object phase
    cdef readonly bint watched
    cdef readonly bint synced
    cdef readonly bint generator
    cdef readonly bint reports
    cdef bint root
    cdef bint collects
    cdef bint binds
    cdef bint new_request
    cdef bint wants_item
    cdef bint is_span
    cdef bint is_entry
    cdef Reader when
    cdef Reader leader
    cdef Reader bind
    cdef Reader process
    cdef Reader enter
    cdef Reader exit
    cdef Reader exit_after_error
    cdef Reader ends
    cdef object steps
    # stand for the locals at exit, or after an error, where rewritten code handed none over
    cdef tuple no_values, no_error_values
    cdef frozenset wants_inside
    cdef bint binds_ids_alone
    cdef Py_ssize_t request_id, turn  # where the readers' names have them
    cdef Names at_both_ends  # None where a field is read at both
    cdef str where  # what its notices say
    cdef Names uncounted, counted  # of a generator: the names that were read last, and the same with its counts

    def __init__(self, plan):
        self.event, self.phase = sys.intern(plan.event), plan.phase
        self.where = f"the probe of {plan.event}"
        self.watched, self.synced, self.generator = plan.watched, plan.synced, plan.generator
        self.reports, self.root, self.new_request = plan.reports, plan.root, plan.new_request
        self.when, self.leader, self.bind, self.process = plan.when, plan.leader, plan.bind, plan.process
        self.enter, self.exit, self.exit_after_error = plan.enter, plan.exit, plan.exit_after_error
        self.ends, self.steps = plan.ends, plan.steps
        self.no_values, self.no_error_values = (UNBOUND,) * len(plan.exit_locals), (UNBOUND,) * len(plan.error_locals)
        self.wants_inside = frozenset(map(sys.intern, plan.wants_inside))
        self.wants_item = plan.wants_item
        self.is_span, self.is_entry = plan.emit == "span", plan.emit == "enter"
        self.collects = (bool(plan.wants_inside) or plan.root) and plan.emit != "enter"
        self.binds = bool(plan.bind or plan.steps or plan.root or plan.new_request)
        if plan.bind is not None and not plan.steps and not plan.new_request:
            self.request_id = place_of(self.bind.names, REQUEST_ID)
            self.turn = place_of(self.bind.names, TURN)
            self.binds_ids_alone = self.bind.names.count == (self.request_id >= 0) + (self.turn >= 0)
        if self.enter is not None and self.exit is not None:
            if not set(self.enter.names.names) & set(self.exit.names.names):
                self.at_both_ends = names_of(self.enter.names.names + self.exit.names.names)


@cython.no_gc_clear
cdef class RegionSpan(Span):
    """One run of a region that reads fields when it ends.

    What it is handed may lead back to the coroutine that runs the region: while it has that, the collector sees
    it, and nothing else holds it.
    """

    cdef Does does
    cdef tuple values  # the locals at the last statement
    cdef tuple error_values  # the locals when an exception passed
    cdef object value  # what is returned, or the item
    cdef Inside inside

    def leave(self, *values):
        """Take the locals that the exit fields read, as they are at the region's last statement."""
        self.values = values
        be_seen(self)

    def fail(self, *values):
        """Take the locals that are read after an exception, as they are when it passes."""
        self.error_values = values

    def leave_result(self, result, *values):
        """Take the returned value and the locals; return the former."""
        self.value = result
        self.values = values
        be_seen(self)
        return result

    def capture(self, name, value):
        """Take the argument of a call within the region as a field; return it."""
        try:
            self.add(**{name: value})
        except BaseException:
            swallow(self.does.where)
        return value

    cdef int finish(self, object error, object value) except -1:
        self.end = now_ns()
        if error is not None:
            self.error = name_of_error(error, value)
        if self.waited_ns != NOT_COUNTED:
            leave_task(self)
        self.read(error is not None)
        return give(self)

    cdef int read(self, bint failed) except -1:
        """Let go of what was handed over, and read the fields of a run that has ended from it."""
        cdef Does does = self.does
        cdef Reader reader = does.exit
        cdef tuple values
        cdef object value = self.value
        cdef Fields fields
        if failed:  # the other locals may be those of an earlier turn
            reader = does.exit_after_error
            values = does.no_error_values if self.error_values is None else self.error_values
        else:
            values = handed_over(self)
        self.let_values_go()
        if reader is not None:
            fields = reader.read(None, value, self.inside, (self.end or now_ns()) - self.start, values)
            self.fields = fields if self.fields is None else self.with_those_at_entry(fields, failed)
        return 0

    cdef int let_values_go(self) except -1:
        PyObject_GC_UnTrack(<PyObject *>self)
        self.values = self.error_values = self.value = None
        return 0

    cdef object with_those_at_entry(self, Fields fields, bint failed):
        """Return the fields of both ends; what is read last wins."""
        if not failed and self.does.at_both_ends is not None and type(self.fields) is Fields:
            return both(self.does.at_both_ends, <Fields>self.fields, fields)
        return {**self.extra, **dict_of(fields)}


cdef inline void be_seen(RegionSpan run) noexcept:
    if not PyObject_GC_IsTracked(run):
        PyObject_GC_Track(run)


@cython.no_gc_clear
cdef class ReportingSpan(RegionSpan):
    """One run of a region that another one reads through `inside`."""

    cdef int finish(self, object error, object value) except -1:
        RegionSpan.finish(self, error, value)
        try:
            report(self, None)
        except BaseException:
            swallow(self.does.where)
        return 0


@cython.no_gc_clear
cdef class FullSpan(RegionSpan):
    """One run of a region that binds, collects, reports, is watched, synchronises the GPU or is a point."""

    cdef Bound bound
    cdef Span known  # stands for this run among the open spans
    cdef Py_ssize_t place  # there

    cdef int enter(self) except -1:
        if self.does.synced:
            synchronize_gpu()
            self.start = now_ns()
        enter_task(self)
        return self.be_watched() if self.does.watched else 0

    cdef int be_watched(self) except -1:
        """Let what stands for this run be known as open: not the run, which holds what the program gave it."""
        cdef Span known = Span.__new__(Span)
        known.begin(self.event, self.fields, None, self.phase, NOT_COUNTED)
        known.context, known.thread, known.start, known.task = self.context, self.thread, self.start, self.task
        self.known = known
        return note_open(known, &self.place)

    cdef int finish(self, object error, object value) except -1:
        try:
            if error is None and self.does.synced:
                synchronize_gpu()
            self.end = now_ns()
            if error is not None:
                self.error = name_of_error(error, value)
        except BaseException:
            try:
                lose(self.does.where)
            finally:
                self.let_go()
        else:
            self.settle(error is not None)
        return 0

    cdef int settle(self, bint failed) except -1:
        """Read the fields, give them to the buffer and to those around, and unbind what was bound."""
        cdef Does does = self.does
        try:
            if self.waited_ns != NOT_COUNTED:
                leave_task(self)
            if does.exit is not None:
                self.read(failed)
            if does.generator:
                (<GeneratorSpan>self).count_items()
            if does.is_span:
                give(self)
            elif not failed:  # a point says that something happened
                self.point()
        except BaseException:
            lose(does.where)
        finally:
            self.let_go()
        return 0

    cdef int point(self) except -1:
        cdef Span point = Span.__new__(Span)
        point.begin(self.event, self.fields, None, self.phase, NOT_COUNTED)
        point.context = self.context
        return record_point(point)

    cdef int let_go(self) except -1:
        cdef Bound bound = self.bound
        if self.known is not None:
            note_closed(self.known, &self.place)
            self.known = None
        self.let_values_go()
        if self.does.is_span and self.does.reports:
            self.report()
        if self.inside is not None:
            self.inside.end()
            self.inside = None
        if bound is not None:  # after the record is kept: this may end the step that it belongs to
            self.bound = None
            try:
                bound.undo()
            except BaseException:
                swallow(self.does.where)
        return 0


    cdef int report(self) except -1:
        try:
            report(self, self.inside)
        except BaseException:
            swallow(self.does.where)
        return 0


@cython.no_gc_clear
cdef class GeneratorSpan(FullSpan):
    """One run of a generator: ends at the item that the table calls the last, else with the generator."""

    cdef long long items
    cdef long long first_item
    cdef bint finished

    cdef int finish(self, object error, object value) except -1:
        if self.finished:
            return self.let_values_go()  # what was handed over since
        if error is GeneratorExit:  # the consumer has seen enough; nothing went wrong
            error = value = None
        return FullSpan.finish(self, error, value)

    def item(self, item, *values):
        """Count an item on its way out, with the locals that say whether it is the last; return it."""
        try:
            self.count(item, values)
        except BaseException:
            swallow(self.does.where)
        return item

    cdef int count(self, object item, tuple values) except -1:
        cdef Does does = self.does
        if not self.items:
            self.first_item = now_ns()
        self.items += 1
        if self.finished:
            return 0
        if does.wants_item:
            self.value = item
            be_seen(self)
        if does.ends is not None:
            if not values:
                values = handed_over(self)
            if holds(does.ends.read(None, self.value, self.inside, now_ns() - self.start, values)):
                self.end = now_ns()
                self.finished = True
                self.values = values  # which the fields at exit read, too
                self.settle(False)
        return 0

    cdef int count_items(self) except -1:
        cdef Fields counts = new_fields(COUNTS)
        cdef Names names
        counts.values[0].kind, counts.values[0].held.integer = IS_INTEGER, self.items
        if self.items:
            counts.values[1].kind, counts.values[1].held.integer = IS_NANOSECONDS, self.first_item - self.start
        if self.fields is None:
            self.fields = counts
            return 0
        names = counted(self.does, (<Fields>self.fields).names) if type(self.fields) is Fields else None
        self.fields = {**dict_of(counts), **self.extra} if names is None else both(names, counts, <Fields>self.fields)
        return 0


cdef Names COUNTS = names_of(("items", "first_item_sec"))


cdef Names counted(Does does, Names names):
    """Return these names behind those of the counts; None where the table uses one of those itself."""
    if does.uncounted is not names:
        does.counted = names_of(COUNTS.names + names.names) if not set(COUNTS.names) & set(names.names) else None
        does.uncounted = names
    return does.counted


cdef class Skipped:
    """A run of which nothing is recorded."""

    def __enter__(self):
        return self

    def __exit__(self, error, value, trace):
        pass

    def leave(self, *values):
        """Take nothing."""

    def fail(self, *values):
        """Take nothing."""

    def leave_result(self, result, *values):
        """Return the result."""
        return result

    def capture(self, name, value):
        """Return the value."""
        return value

    def item(self, item, *values):
        """Return the item."""
        return item


cdef Skipped SKIPPED = Skipped()


cdef bint holds(Fields condition) except -1:
    """Return whether a condition was met; one that could not be read was not."""
    cdef Py_ssize_t at
    for at in range(condition.names.count):
        if condition.values[at].kind != IS_ABSENT and value_of(&condition.values[at]):
            return True
    return False


cdef inline tuple handed_over(RegionSpan run):
    """Return the values of the locals that the fields at exit read."""
    return run.does.no_values if run.values is None else run.values


cdef enum Way:
    PLAINLY, SIMPLY, REPORTING, FULLY


cdef class Opener:
    """Begins runs of a region when called with the values of its `enter_locals`."""

    cdef Does does
    cdef Way way
    cdef object kind  # of a span that says everything
    cdef long long waited_ns

    def __init__(self, plan, waited):
        self.does = Does(plan)
        self.kind = plan.kind
        self.waited_ns = NOT_COUNTED if waited is None else waited
        if plan.is_plain:
            self.way = PLAINLY
        elif not plan.is_simple:
            self.way = FULLY
        else:
            self.way = REPORTING if plan.reports else SIMPLY

    def __call__(self, *values):
        cdef PyObject *begun = (<Open><void*>open_now)(self, values)
        if begun == NULL:
            lose_pending(self.does.where)
            return SKIPPED
        run = <object>begun
        Py_XDECREF(begun)
        return run

    cdef RegionSpan simple(self, tuple values):
        cdef RegionSpan run
        run = ReportingSpan.__new__(ReportingSpan) if self.way == REPORTING else RegionSpan.__new__(RegionSpan)
        self.begin(run, None if self.does.enter is None else entry(self.does.enter, values))
        return run

    cdef Span plain(self):
        cdef Span made
        if self.kind is Span:
            made = Span.__new__(Span)
        elif self.kind is WatchedSpan:
            made = WatchedSpan.__new__(WatchedSpan)
        else:
            made = SyncedSpan.__new__(SyncedSpan)
        made.begin(self.does.event, None, None, self.does.phase, self.waited_ns)
        return made

    cdef int begin(self, RegionSpan run, object extra) except -1:
        cdef Context context
        run.does = self.does
        run.begin(self.does.event, extra, self.does, self.does.phase, self.waited_ns)
        context = <Context>run.context
        if context.base is not None:  # what the records of one context share is made once
            run.context = context.base
        return 0

    cdef object full(self, tuple values):
        """Begin a run of any region."""
        cdef Does does = self.does
        cdef Bound bound = None
        cdef Inside inside = None
        cdef FullSpan run
        try:
            if does.when is not None and not holds(entry(does.when, values)):
                return SKIPPED
            if does.process is not None:
                name_process(**dict_of(entry(does.process, values)))
            if does.leader is not None and not holds(entry(does.leader, values)):
                return SKIPPED
            if does.collects:
                inside = collect(does.wants_inside, does.root)
            if does.binds:
                bound = bind(does, values, inside)
            elif inside is not None:
                bound = bind_inside(inside)
            extra = None if does.enter is None else does.enter.read(None, None, inside, -1, values)
            if does.is_entry:
                record_entry(does, extra)
                return SKIPPED
            run = GeneratorSpan.__new__(GeneratorSpan) if does.generator else FullSpan.__new__(FullSpan)
            self.begin(run, extra)
            run.bound, run.inside = bound, inside
            return run
        except BaseException:
            if bound is not None:
                bound.undo()
            raise


ctypedef PyObject* (*Open)(Opener, tuple) noexcept  # as in blocks.pxi


cdef object open_now(Opener self, tuple values):
    if self.way == PLAINLY:
        return self.plain()
    return self.full(values) if self.way == FULLY else self.simple(values)


cdef inline Fields entry(Reader reader, tuple values):
    return reader.read(None, None, None, -1, values)


cdef int record_entry(Does does, object extra) except -1:
    cdef Span point = Span.__new__(Span)
    point.begin(does.event, extra, None, does.phase, NOT_COUNTED)
    return record_point(point)


cdef Bound bind(Does does, tuple values, Inside inside):
    """Bind what the table says; a root begins from nothing."""
    cdef Context root = NOTHING_BOUND if does.root else None
    cdef dict changes
    cdef Fields ids
    if does.binds_ids_alone:
        ids = entry(does.bind, values)
        return bind_ids(value_at(ids, does.request_id), value_at(ids, does.turn), inside, root)
    changes = {} if does.bind is None else dict_of(entry(does.bind, values))
    if does.steps is not None:
        changes = does.steps.name_step(changes)
    if does.new_request and changes.get("request_id") is None:
        changes = {**changes, "request_id": new_request_id()}
    return bind_on(changes, inside, root)


cdef inline object value_at(Fields fields, Py_ssize_t place):
    """Return the value in some place, None where there is none."""
    if place < 0 or fields.values[place].kind == IS_ABSENT:
        return None
    return value_of(&fields.values[place])


skipped = SKIPPED

for kind in (RegionSpan, ReportingSpan, FullSpan, GeneratorSpan):
    be_seen_in_slabs(kind)


def connect(*, unbound, nothing_bound, naming_process, naming_request):
    """Take what belongs to the pure modules."""
    global UNBOUND, NOTHING_BOUND, name_process, new_request_id
    UNBOUND, NOTHING_BOUND = unbound, nothing_bound
    name_process, new_request_id = naming_process, naming_request
