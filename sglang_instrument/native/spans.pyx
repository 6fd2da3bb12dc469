# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, embedsignature=False, binding=False, nonecheck=False
"""The hot path of recording/, compiled: spans, asyncio's tasks, what coroutines wait."""

cimport cython
from cpython.contextvars cimport PyContextVar_Get
from cpython.dict cimport PyDict_GetItemWithError, PyDict_Next, PyDict_Size
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from cpython.ref cimport Py_XDECREF

cdef extern from "Python.h":
    object PyWeakref_NewRef(object, object)
    bint PyErr_ExceptionMatches(object) noexcept
    void PyErr_SetNone(PyObject*) noexcept

cdef extern from *:
    """
    #define sglang_instrument_pending() (-1)
    """
    int raise_pending "sglang_instrument_pending"() except -1

from sglang_instrument.native.extras cimport Fields, dict_of
from sglang_instrument.native.slabs cimport lie_in_slabs

include "stamp.pxi"
include "tasks.pxi"

# What recording/spans.py hands over when it is imported.
cdef object OFF = None
cdef object current_context = None  # the context variable
cdef object reduce_extra = None
cdef object learn_kind = None
cdef object kind_of_phase = None
cdef object synchronize = None
cdef object describe_error = None
cdef object note_lost = None
cdef object note_swallowed = None
cdef object let_through = None
cdef object to_text = None
cdef object reduce_one = None
cdef Span LOST = None
cdef object ask_asyncio = None
cdef object plain = None

# What recording/spans.py says from time to time.
cdef object buffer = None
cdef object first_opened = int  # does nothing
cdef object all_closed = int
cdef object entering_hook = None

cdef dict kinds = {}


@cython.no_gc  # what it holds was reduced, and leads to no span
cdef class Span:
    """A timed block; see recording/spans.py."""

    def __cinit__(self):
        self.called = <vectorcallfunc>call_span

    def __init__(
        self,
        event,
        extra=None,
        plan=None,
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
        self.begin(event, extra, plan, phase, NOT_COUNTED if waited is None else waited)
        if context is not None:
            self.context = context
        if thread is not None:
            self.thread = thread
        if start is not None:
            self.start = start
        self.end, self.error, self.task, self.device_sec = end, error, task, device_sec

    cdef int begin(self, object event, object extra, object plan, object phase, long long waited_ns) except -1:
        self.event, self.fields, self.plan, self.phase = event, extra, plan, phase
        self.waited_ns = waited_ns
        self.context = context_now()
        self.thread = PyThread_get_thread_ident()
        self.start = now_ns()
        return 0

    cdef int enter(self) except -1:
        return enter_task(self)

    cdef int finish(self, object error, object value) except -1:
        self.end = now_ns()
        if error is not None:
            self.error = name_of_error(error, value)
        if self.waited_ns != NOT_COUNTED:
            leave_task(self)
        return give(self)

    def __aenter__(self):
        enter_block(self)
        return at_once(self)

    def __aexit__(self, error, value, trace):
        leave_block(self, error, value)
        return at_once(None)

    def add(self, **extra):
        """Add fields to the record; call it before the block ends."""
        try:
            reduced = reduce_extra(extra)
            self.extra = reduced if self.extra is None else {**self.extra, **reduced}
        except BaseException:
            swallow("adding to a span")

    @property
    def extra(self):
        """The fields of the record, as a dict; None without any."""
        if type(self.fields) is Fields:
            self.fields = dict_of(<Fields>self.fields)
        return self.fields

    @extra.setter
    def extra(self, value):
        self.fields = value

    @property
    def duration_sec(self):
        """Wall time of the block in seconds; up to now while it is open."""
        return ((self.end or now_ns()) - self.start) / 1e9

    @property
    def waited(self):
        """Nanoseconds for which its task waited; None where nobody counts them."""
        return None if self.waited_ns == NOT_COUNTED else self.waited_ns

    @waited.setter
    def waited(self, value):
        self.waited_ns = NOT_COUNTED if value is None else value

    def awaiting(self, awaitable):
        """Return what to await instead of `awaitable`, a coroutine of this span's block that nobody awaits yet."""
        cdef Task task = self.task
        if task is None or task.counted_by != <size_t><void*>self:
            return awaitable  # whoever counts around it counts this await, too
        return waits_of(task, awaitable)

    def __reduce__(self):
        from sglang_instrument.recording.copied import restored

        return restored, (self.event, self.extra, self.phase, self.thread, self.start, self.end, self.error)

    def __repr__(self):
        return f"{type(self).__name__}({self.event!r}, {self.extra!r}, start={self.start}, end={self.end})"


@cython.no_gc
cdef class WatchedSpan(Span):
    """A span that is known while it is open, so that one which never ends can be reported."""

    cdef int enter(self) except -1:
        enter_task(self)
        return note_open(self, &self.place)

    cdef int finish(self, object error, object value) except -1:
        try:
            Span.finish(self, error, value)
        finally:
            note_closed(self, &self.place)
        return 0


@cython.no_gc
cdef class SyncedSpan(WatchedSpan):
    """A step-level span of synchronous code: the GPU's queued work is waited for at both ends."""

    cdef int enter(self) except -1:
        synchronize()
        self.start = now_ns()
        return WatchedSpan.enter(self)

    cdef int finish(self, object error, object value) except -1:
        try:
            if error is None:  # after an exception the trainer shall meet the GPU's own error first
                synchronize()
        finally:
            WatchedSpan.finish(self, error, value)
        return 0


@cython.no_gc
cdef class LostSpan(Span):
    """Stand for a span that could not be made: it measures and records nothing."""

    cdef int enter(self) except -1:
        return 0

    cdef int finish(self, object error, object value) except -1:
        return 0

    def add(self, **extra):
        """Add nothing."""


cdef class AtOnce:
    """Await nothing, and get a value."""

    cdef object value

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        value, self.value = self.value, None
        raise StopIteration(value)


cdef object at_once(object value):
    cdef AtOnce made = AtOnce.__new__(AtOnce)
    made.value = value
    return made


@cython.freelist(8)
cdef class Start:
    """Make spans of one event: called without arguments."""

    cdef object kind
    cdef object event
    cdef object phase
    cdef long long waited_ns
    cdef tuple asked

    def __init__(self, kind, event, phase, sync, waited):
        self.kind, self.event, self.phase = kind, event, phase
        self.waited_ns = NOT_COUNTED if waited is None else waited
        self.asked = (event, phase, sync, waited)

    def __reduce__(self):
        return plain, self.asked  # to a process where nothing is compiled, perhaps

    def __call__(self):
        cdef PyObject *made = (<Begin><void*>begin_now)(self)
        if made == NULL:
            lose_pending("beginning a span")
            return LOST
        span = <object>made
        Py_XDECREF(made)
        return span


ctypedef PyObject* (*Begin)(Start) noexcept


cdef object begin_now(Start start):
    cdef Span made = new_span(start.kind)
    made.begin(start.event, None, None, start.phase, start.waited_ns)
    return made


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
    """Let the span know the asyncio task that runs now, and what that one has waited so far."""
    cdef Task task
    if entering_hook is not None:
        entering_hook(entering)
    if not some_task_runs():
        return 0
    task = task_here(entering.thread)
    if task is None:
        task = look_up_task(entering.context.bound_in)
        if task is None:
            entering.waited_ns = NOT_COUNTED
            return 0
    entering.task = task
    if task.counted_by:
        entering.waited_ns = task.waited
    elif entering.waited_ns != NOT_COUNTED:  # its block counts its own awaits: nothing else does so far
        task.counted_by, entering.waited_ns = <size_t><void*>entering, task.waited
    return 0


cdef void leave_task(Span leaving) noexcept:
    """Turn the task's count of suspended time into that of this span."""
    cdef Task task = leaving.task
    if task is None:
        leaving.waited_ns = NOT_COUNTED
        return
    leaving.waited_ns = task.waited - leaving.waited_ns
    if task.counted_by == <size_t><void*>leaving:
        task.counted_by = 0


cdef object name_of_error(object error, object value):
    return describe_error(error, value)


cdef long long lost_records = 0


cdef int lose(str where) except -1:
    """Count a record that could not be made or kept; called while the reason is handled."""
    global lost_records
    if buffer is not OFF:
        lost_records += 1
        said(note_lost, where)
    else:
        said(let_through, None)
    return 0


cdef int swallow(str where) except -1:
    said(note_swallowed, where)
    return 0


cdef int lose_pending(str where) except -1:
    try:
        raise_pending()
    except BaseException:
        lose(where)
    return 0


cdef int swallow_pending(str where) except -1:
    try:
        raise_pending()
    except BaseException:
        swallow(where)
    return 0


cdef int said(object function, str where) except -1:
    """Call what lets through what is the program's own; there may be no memory even for that."""
    try:
        if where is None:
            function()
        else:
            function(where)
    except MemoryError:
        pass
    return 0


cdef bint is_off() noexcept:
    return buffer is OFF


cdef int give(Span finished) except -1:
    taking = buffer
    if taking is not OFF:
        taking.append(finished)
    return 0


include "open.pxi"


cdef int record_point(Span point) except -1:
    enter_task(point)
    point.waited_ns = NOT_COUNTED
    return give(point)


cdef object synchronize_gpu():
    return synchronize()


for kind in (Span, WatchedSpan, SyncedSpan, LostSpan):
    lie_in_slabs(kind)


include "blocks.pxi"
include "waits.pxi"


@cython.binding(True)  # it tells its signature, and takes the words of recording/spans.py
def span(event, /, *, phase=None, **extra):
    """Time a block."""
    cdef PyObject *made = (<Make><void*>make_span)(event, phase, extra)
    if made == NULL:
        lose_pending("beginning a span")
        return LOST
    span = <object>made
    Py_XDECREF(made)
    return span


ctypedef PyObject* (*Make)(object, object, dict) noexcept


cdef object make_span(object event, object phase, dict extra):
    cdef Span made
    cdef PyObject *known = NULL
    if type(event) is not str:
        event = reduce_one(event)
    if type(event) is str:  # a list, say, can be no name
        known = PyDict_GetItemWithError(kinds, event)
        kind = learn_kind(event) if known is NULL else <object>known
    else:
        kind = Span
    if phase is not None:
        phase = to_text(phase)
        kind = kind_of_phase(event, phase)
    made = new_span(kind)
    made.begin(event, reduce_extra(extra) if extra else None, None, phase, NOT_COUNTED)
    return made


@cython.binding(True)
def event(name, /, *, phase=None, **extra):
    """Record an instant event."""
    cdef Span point
    try:
        point = Span.__new__(Span)
        known = name if type(name) is str else reduce_one(name)
        if phase is not None:
            phase = to_text(phase)
        point.begin(known, reduce_extra(extra) if extra else None, None, phase, NOT_COUNTED)
        record_point(point)
    except BaseException:
        lose("recording an event")


cdef extern from *:
    """
    static vectorcallfunc *sglang_instrument_call_of(PyObject *function) {
        return (vectorcallfunc *)((char *)function + Py_TYPE(function)->tp_vectorcall_offset);
    }
    """
    vectorcallfunc* call_of "sglang_instrument_call_of"(object) noexcept

# What Cython made of the two above; without keywords, too, it makes a dict before their first line.
cdef vectorcallfunc call_of_span = call_of(span)[0]
cdef vectorcallfunc call_of_event = call_of(event)[0]


cdef PyObject* span_or_lost(PyObject *called, PyObject * const *args, size_t flagged, PyObject *names) noexcept:
    cdef PyObject *made = call_of_span(called, args, flagged, names)
    return instead_of_call("beginning a span", LOST) if made == NULL else made


cdef PyObject* event_or_none(PyObject *called, PyObject * const *args, size_t flagged, PyObject *names) noexcept:
    cdef PyObject *made = call_of_event(called, args, flagged, names)
    return instead_of_call("recording an event", None) if made == NULL else made


cdef PyObject* instead_of_call(str where, object instead) noexcept:
    if not PyErr_ExceptionMatches(MemoryError):
        return NULL  # the call was not one
    lose_pending(where)  # what it lets through, no call can have raised
    Py_INCREF(<PyObject*>instead)
    return <PyObject*>instead


call_of(span)[0], call_of(event)[0] = span_or_lost, event_or_none


def record(Span point not None):
    """Append a span that was not used as a block: a point event, or one whose times were set by hand."""
    record_point(point)


def connect(
    *,
    off,
    context,
    reduce,
    known_kinds,
    learn,
    kind_for,
    synchronize_device,
    name_error,
    ask_for_tasks,
    start_of,
    noting_lost,
    swallowed_now,
    letting_through,
    text,
    reduce_value,
):
    """Take what belongs to the modules that this one serves; none of it changes later."""
    global OFF, current_context, reduce_extra, kinds, learn_kind, kind_of_phase, synchronize
    global describe_error, ask_asyncio, plain, buffer, note_lost, note_swallowed, let_through, to_text
    global reduce_one, LOST
    ask_asyncio, plain = ask_for_tasks, start_of
    note_lost, note_swallowed, let_through = noting_lost, swallowed_now, letting_through
    to_text, reduce_one = text, reduce_value
    OFF, current_context, reduce_extra, kinds = off, context, reduce, known_kinds
    learn_kind, kind_of_phase, synchronize, describe_error = learn, kind_for, synchronize_device, name_error
    buffer = off
    LOST = LostSpan("lost", start=1, end=1)


def use_buffer(taking, on_first_opened, on_all_closed):
    """Send finished spans to `taking`; see recording/spans.py."""
    global buffer, first_opened, all_closed
    buffer, first_opened, all_closed = taking, on_first_opened, on_all_closed


def lost():
    """Return how many records were lost on the threads that made them, since this process began."""
    return lost_records


def call_at_entry(hook):
    """Call `hook(span)` when a span is entered or a point recorded; None calls nothing."""
    global entering_hook
    entering_hook = hook


cdef list homes = []  # the names in use, which must not go


def call_by_home(kind, str module):
    """Call a compiled type by the public module that shows it, by which it is pickled, too."""
    home = f"{module}.{kind.__name__}".encode("ascii")
    homes.append(home)
    (<PyTypeObject*>kind).tp_name = home
