# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, embedsignature=False, binding=False, nonecheck=True
"""patching/probes/region_spans.py, compiled: entering and leaving a run cannot raise into the program."""

from sglang_instrument.recording.measure._spans cimport (
    NOT_COUNTED,
    Block,
    Span,
    append_to_buffer,
    drop_record,
    install_enter_exit,
)
from sglang_instrument.recording.measure._tasks cimport now_ns

include "sglang_instrument/native/module.pxi"

# connect() sets these, from patching/probes/region_spans.py.
cdef object leave_run = None
cdef object count_item = None
cdef object capture_value = None
cdef object read_early = None
cdef object read_item = None
cdef object log_swallowed = None
cdef object unbound = None
cdef object SKIPPED = None


cdef class RegionSpan(Block):
    """One run of a region; see patching/probes/region_spans.py."""

    cdef public Span span
    cdef public object plan
    cdef public object values
    cdef public object error_values
    cdef public object fields
    cdef public object item_fields
    cdef public object value
    cdef public object bound
    cdef public object inside
    cdef public long long items
    cdef public long long first_item
    cdef public bint finished
    cdef bint only_reads  # plan.only_reads: `end` may take the place of leave_run()

    def __cinit__(self, Span span not None, plan, bint only_reads=False):
        self.span, self.plan, self.only_reads = span, plan, only_reads

    cdef int enter(self) except -1:
        return self.span.enter()

    cdef int finish(self, object error, object value) except -1:
        if not self.only_reads or self.finished or self.values is None or error is not None or self.item_fields is not None:
            leave_run(self, error, value)
            return 0
        return self.end(self.values)

    cdef int end(self, tuple values) except -1:
        """Read the fields of a run that only reads, and keep its record."""
        cdef Span span = self.span
        plan = self.plan
        try:
            span.stop(None, None)
            if plan.exit is not None:
                fields = plan.exit(self, *values)
                span.extra = fields if span.extra is None else {**span.extra, **fields}
            if plan.generator:
                counted = {"items": self.items}
                if self.items:
                    counted["first_item_sec"] = (self.first_item - span.start) / 1e9
                span.extra = counted if span.extra is None else {**counted, **span.extra}
            append_to_buffer(span)
        except BaseException:
            drop_record("the probe of", span.event)
        finally:
            self.values = self.value = None
        return 0

    cdef int count(self, object item, tuple handed) except -1:
        """Count an item of a run that only reads, and end the run if this is the last one."""
        if not self.items:
            self.first_item = now_ns()
        self.items += 1
        if self.finished:
            return 0
        plan = self.plan
        if plan.wants_item:
            self.value = item
        try:
            if plan.ends is not None:
                values = handed or self.values
                if values is None:
                    values = unbound(plan.exit_locals) if plan.exit_locals else ()
                if plan.ends(self, *values):
                    self.finished = True
                    return self.end(values)
            if plan.item is not None:
                read_item(self, handed)
        finally:
            self.value = None
        return 0

    def leave(self, *values):
        """Take the values of the exit locals, at the region's last statement."""
        self.values = values

    def fail(self, *values):
        """Take the values of the error locals, when an exception passes."""
        self.error_values = values

    def leave_result(self, result, *values):
        """Take the returned value and the values of the exit locals; return the returned value."""
        self.value = result
        self.values = values
        return result

    def leave_early(self, *values):
        """Read the exit fields, because a `finally` or a `with` follows that may drop the values."""
        read_early(self, None, values)

    def leave_result_early(self, result, *values):
        """As `leave_early`, also with the returned value; return it."""
        read_early(self, result, values)
        return result

    def capture(self, name, value):
        """Record the argument of a call inside the region as a field; return it."""
        capture_value(self, name, value)
        return value

    def item(self, item, *values):
        """Count a yielded item; `values` are the exit locals, for `ends`; return the item."""
        if not self.only_reads:
            count_item(self, item, values)
            return item
        try:
            self.count(item, values)
        except BaseException:
            log_swallowed(self)
        return item

    @property
    def duration_sec(self):
        """Wall time in seconds; up to now while the region is open."""
        return self.span.duration_sec


install_enter_exit(RegionSpan)


def begin_simple_run(plan, event, phase, waited, enter, only_reads, *values):
    """Begin a run of a region that needs only a span at its start, with the fields that `enter` reads."""
    try:
        return RegionSpan.__new__(RegionSpan, new_span(event, phase, waited, enter, values), plan, only_reads)
    except BaseException:
        drop_record("the probe of", event)
        return SKIPPED


def begin_span(event, phase, waited, enter, *values):
    """Begin a run of a region that needs only a span with the fields that `enter` reads."""
    try:
        return new_span(event, phase, waited, enter, values)
    except BaseException:
        drop_record("the probe of", event)
        return SKIPPED


cdef Span new_span(object event, object phase, object waited, object enter, tuple values):
    cdef Span span = Span.__new__(Span)
    extra = None if enter is None else enter(None, *values)
    span.begin(event, extra, phase, NOT_COUNTED if waited is None else waited)
    return span


def connect(dict pure):
    """Take what this module uses of patching/probes/region_spans.py."""
    global leave_run, count_item, capture_value, read_early, read_item, log_swallowed, unbound, SKIPPED
    leave_run, count_item = pure["leave_run"], pure["count_item"]
    capture_value, SKIPPED = pure["capture_value"], pure["SKIPPED"]
    read_early, read_item = pure["read_early"], pure["read_item"]
    log_swallowed, unbound = pure["_log_swallowed"], pure["_unbound"]
