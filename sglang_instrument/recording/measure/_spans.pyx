# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, embedsignature=False, binding=False, nonecheck=False
"""recording/measure/spans.py, compiled: time a block and append it to the buffer."""

cimport cython
from cpython.contextvars cimport PyContextVar_Get
from cpython.dict cimport PyDict_GetItemWithError, PyDict_Size
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from cpython.ref cimport Py_XDECREF

cdef extern from "Python.h":
    bint PyErr_ExceptionMatches(object) noexcept
    void Py_INCREF(PyObject*) noexcept

cdef extern from *:
    """
    #define sglang_instrument_pending() (-1)
    """
    int raise_pending "sglang_instrument_pending"() except -1

from sglang_instrument.recording.measure._context cimport Context, skip_left
from sglang_instrument.recording.measure._tasks cimport Task, look_up_task, now_ns, some_task_runs, task_here

include "sglang_instrument/native/module.pxi"
include "sglang_instrument/recording/measure/_blocks.pxi"

# connect() sets these, from recording/measure/spans.py.
cdef object OFF = None
cdef object current_context = None  # the context variable
cdef object reduce_extra = None
cdef object learn_kind = None
cdef object kind_of_phase = None
cdef object synchronize = None
cdef object describe_error = None
cdef object log_dropped_record = None
cdef object log_swallowed_now = None
cdef object reraise_if_programs_own = None
cdef object to_text = None
cdef object reduce_one = None
cdef Span LOST = None
# Of recording/measure/reentry.py.
cdef dict AGAIN = None
cdef object NO_EXTRA = None
cdef object enter_again = None
cdef object left_again = None
cdef object innermost = None

# recording/measure/spans.py changes these later.
cdef object buffer = None
cdef object first_opened = None  # the writer's
cdef object all_closed = None
cdef dict OPEN = None  # of recording/measure/open_spans.py
cdef object entering_hook = None

cdef dict kinds = {}


@cython.no_gc  # its values were reduced, and refer to no span
cdef class Span:
    """A timed block; see recording/measure/spans.py."""

    def __init__(
        self,
        event,
        extra=None,
        phase=None,
        waited=None,
        context=None,
        thread=None,
        start=None,
        long long end=0,
        error=None,
        Task task=None,
        device_sec=None,
    ):
        self.begin(event, extra, phase, NOT_COUNTED if waited is None else waited)
        if context is not None:
            self.context = context
        if thread is not None:
            self.thread = thread
        if start is not None:
            self.start = start
        self.end, self.error, self.task, self.device_sec = end, error, task, device_sec

    cdef int begin(self, object event, object extra, object phase, long long waited_ns) except -1:
        self.event, self.extra, self.phase = event, extra, phase
        self.waited_ns = waited_ns
        self.context = context_now()
        if (<Context?>self.context).left:
            self.context = skip_left(<Context>self.context)
        self.thread = PyThread_get_thread_ident()
        self.start = now_ns()
        return 0

    cdef int enter(self) except -1:
        self.entered = True
        return enter_task(self)

    cdef int finish(self, object error, object value) except -1:
        self.stop(error, value)
        return append_to_buffer(self)

    cpdef int stop(self, object error, object value) except -1:
        """Take the span's end time, and name the exception that ends the block; for all kinds of spans."""
        self.end = now_ns()
        if error is not None:
            self.error = describe_error(error, value)
        if self.waited_ns != NOT_COUNTED:
            leave_task(self)
        return 0

    def __aenter__(self):
        return ready(entered_block(self))

    def __aexit__(self, error, value, trace):
        leave_block(self, error, value)
        return ready(None)

    def add(self, **extra):
        """Add fields to the record; call it before the block ends."""
        cdef Span block = innermost(self) if size_of_dict(AGAIN) else self
        try:
            reduced = reduce_extra(extra)
            if block.given is None:
                block.given = NO_EXTRA if block.extra is None else block.extra
            block.extra = reduced if block.extra is None else {**block.extra, **reduced}
        except BaseException:
            log_swallowed("adding to a span")

    @property
    def duration_sec(self):
        """Wall time of the block in seconds; up to now while it is open."""
        cdef Span block = innermost(self) if size_of_dict(AGAIN) else self
        return ((block.end or now_ns()) - block.start) / 1e9

    @property
    def waited(self):
        """Nanoseconds for which its task waited; None if they are not counted."""
        return None if self.waited_ns == NOT_COUNTED else self.waited_ns

    @waited.setter
    def waited(self, value):
        self.waited_ns = NOT_COUNTED if value is None else value

    def __reduce__(self):
        from sglang_instrument.recording.measure.span_copies import restored

        return restored, (self.event, self.extra, self.phase, self.thread, self.start, self.end, self.error)

    def __repr__(self):
        return f"{type(self).__name__}({self.event!r}, {self.extra!r}, start={self.start}, end={self.end})"


@cython.no_gc
cdef class WatchedSpan(Span):
    """A span that is tracked while it is open, so that the watchdog can report one that never ends."""

    cdef int enter(self) except -1:
        Span.enter(self)
        return note_open(self)

    cdef int finish(self, object error, object value) except -1:
        try:
            Span.finish(self, error, value)
        finally:
            close(self)
        return 0


@cython.no_gc
cdef class SyncedSpan(WatchedSpan):
    """A step-level span of synchronous code: it waits for the GPU's queued work at both ends."""

    cdef int enter(self) except -1:
        synchronize()
        self.start = now_ns()
        return WatchedSpan.enter(self)

    cpdef int stop(self, object error, object value) except -1:
        """Wait for the GPU, then take the span's end time."""
        try:
            if error is None:  # after an exception the trainer itself must get the GPU's error first
                synchronize()
        finally:
            Span.stop(self, error, value)
        return 0


@cython.no_gc
cdef class LostSpan(Span):
    """Replaces a span that could not be made: it measures and records nothing."""

    cdef int enter(self) except -1:
        return 0

    cdef int finish(self, object error, object value) except -1:
        return 0

    def add(self, **extra):
        """Add nothing."""


include "sglang_instrument/recording/measure/_losses.pxi"
include "sglang_instrument/recording/measure/_open_spans.pxi"


cpdef int append_to_buffer(Span finished) except -1:
    """Append a finished span to the buffer in use."""
    taking = buffer
    if taking is not OFF:
        taking.append(finished)
    return 0


def begin(kind, event, phase, waited):
    """Make a span; return `LOST` if that fails."""
    cdef Span made
    try:
        made = new_span(kind)
        made.begin(event, None, phase, NOT_COUNTED if waited is None else waited)
        return made
    except BaseException:
        drop_record("beginning a span")
        return LOST


cdef inline Span new_span(object kind):
    if kind is Span:
        return Span.__new__(Span)
    if kind is WatchedSpan:
        return WatchedSpan.__new__(WatchedSpan)
    return kind.__new__(kind)


cdef inline object context_now():
    cdef PyObject *bound = NULL
    PyContextVar_Get(current_context, NULL, &bound)  # it has a default
    context = <object>bound
    Py_XDECREF(bound)
    return context


cdef int enter_task(Span entering) except -1:
    """Store in the span the asyncio task that runs now, and for how long that task has waited so far."""
    cdef Task task
    if entering_hook is not None:
        tell_entry(entering)
    if not some_task_runs():
        return 0
    task = task_here(entering.thread)
    if task is None:
        task = look_up_task(entering.context.bound_by_task)
        if task is None:
            entering.waited_ns = NOT_COUNTED
            return 0
    entering.task = task
    if task.counted_by:
        entering.waited_ns = task.waited
    elif entering.waited_ns != NOT_COUNTED:  # its block counts awaits, and no outer span does
        task.counted_by, entering.waited_ns = <size_t><void*>entering, task.waited
    return 0


cdef int tell_entry(Span entering) except -1:
    try:
        entering_hook(entering)
    except BaseException:
        log_swallowed("beginning a span")
    return 0


cdef void leave_task(Span leaving) noexcept:
    """Set the span's waiting time: the task's suspended time now, minus that at the span's start."""
    cdef Task task = leaving.task
    if task is None:
        leaving.waited_ns = NOT_COUNTED
        return
    leaving.waited_ns = task.waited - leaving.waited_ns
    if task.counted_by == <size_t><void*>leaving:
        task.counted_by = 0


cdef int record_point(Span point) except -1:
    enter_task(point)
    point.waited_ns = NOT_COUNTED
    return append_to_buffer(point)


for kind in (Span, WatchedSpan, SyncedSpan, LostSpan):
    install_enter_exit(kind)


include "sglang_instrument/recording/measure/_calls.pxi"


def record(Span point not None):
    """Append a span that was not used as a block: an instant event, or one with times set by hand."""
    record_point(point)


def connect(dict pure):
    """Take what this module uses of recording/measure/spans.py; nothing of it changes later."""
    global OFF, OPEN, LOST, buffer, current_context, kinds, learn_kind, kind_of_phase, synchronize
    global reduce_extra, reduce_one, to_text, describe_error
    global log_dropped_record, log_swallowed_now, reraise_if_programs_own
    global AGAIN, NO_EXTRA, enter_again, left_again, innermost
    AGAIN, NO_EXTRA, innermost = pure["AGAIN"], pure["NO_EXTRA"], pure["innermost"]
    enter_again, left_again = pure["enter_again"], pure["left_again"]
    OFF, OPEN, current_context, kinds = pure["OFF"], pure["OPEN"], pure["CURRENT"], pure["_kinds"]
    learn_kind, kind_of_phase = pure["_learn"], pure["kind_for"]
    synchronize, describe_error = pure["gpu_sync"].synchronize, pure["name_error"]
    reduce_extra, reduce_one, to_text = pure["reduce"], pure["reduce_value"], pure["text"]
    log_dropped_record, log_swallowed_now = pure["losses"].log_dropped_record, pure["losses"].log_swallowed_now
    reraise_if_programs_own = pure["reraise_if_programs_own"]
    buffer = OFF
    LOST = LostSpan("lost", start=1, end=1)


def use_buffer(taking, on_first_opened, on_all_closed):
    """Send finished spans to `taking`; see recording/measure/spans.py."""
    global buffer, first_opened, all_closed
    buffer, first_opened, all_closed = taking, on_first_opened, on_all_closed


def call_at_entry(hook):
    """Call `hook(span)` for each entered span and each instant event; None calls nothing."""
    global entering_hook
    entering_hook = hook
