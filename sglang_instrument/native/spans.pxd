# What other compiled modules may use of spans.pyx.
#
# `Span` and `Task` are the classes of recording/spans.py and recording/tasks.py, field by field. Nothing
# that is no collector's business leads from one back to itself: both are no_gc, as their Structs are gc=False.

cimport cython
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

cdef extern from "Python.h":
    ctypedef struct PyObject:
        pass
    ctypedef PyObject* (*vectorcallfunc)(PyObject*, PyObject* const*, size_t, PyObject*)

cdef enum:
    NOBODY = -1
    NOT_COUNTED = -1  # waited_ns of a span whose waiting nobody counts; None in Python

cdef inline long long now_ns() noexcept:
    """Return what perf_counter_ns() does on Linux."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <long long>now.tv_sec * 1_000_000_000 + now.tv_nsec

@cython.no_gc
cdef class Task:
    cdef public unsigned long thread  # what each span asks for comes first: the rest lies in colder memory
    cdef public size_t counted_by
    cdef object reference  # asyncio's weak one to the asyncio task; see owners.pxi
    cdef public long long number
    cdef public object announced
    cdef public long long waited
    cdef public long long suspended_at
    cdef public object loop
    cdef long long made_by  # the number of who spawned it, NOBODY if that is not known; no int of its own

@cython.no_gc  # said here too: else a subclass in another module is the collector's
cdef class Block:
    cdef vectorcallfunc called  # see blocks.pxi
    # A `with` block calls these; subclasses override them, and no __enter__ or __exit__.
    cdef int enter(self) except -1
    cdef int finish(self, object error, object value) except -1

@cython.no_gc
cdef class Span(Block):
    cdef public object event
    cdef public object extra  # the fields of the record: a dict, or None
    cdef public object phase
    cdef public object context
    cdef public object error
    cdef public Task task
    cdef public object device_sec  # float or None
    cdef public unsigned long thread
    cdef public long long start
    cdef public long long end  # 0 of a point
    cdef long long waited_ns  # NOT_COUNTED where nobody counts

    # Sets everything that a span has at its start: context, thread and clock are read here.
    cdef int begin(self, object event, object extra, object phase, long long waited_ns) except -1
    cpdef int stop(self, object error, object value) except -1

@cython.no_gc
cdef class WatchedSpan(Span):
    cdef public object place  # among those that are open: its id(), known when there may be no memory for one

@cython.no_gc
cdef class SyncedSpan(WatchedSpan):
    pass

@cython.no_gc
cdef class LostSpan(Span):
    pass

cdef class Waits:
    cdef Task task
    cdef object steps
    cdef bint begun

cdef int give_ends(object kind) except -1  # lets a type of blocks be entered and left; see blocks.pxi
cdef object context_now()  # the bound Context
cdef Task current_task(object inherited)  # the asyncio task that runs now; None outside of any
cdef Task thread_task_of(unsigned long ident)
cdef int enter_task(Span entering) except -1  # spans.enter_task
cdef void leave_task(Span leaving) noexcept  # spans.leave_task; for one whose waited_ns is not NOT_COUNTED
cpdef int lose(str where, event=*) except -1  # spans.lose
cdef int swallow(str where) except -1  # notices.swallowed, of the error that is being handled
cdef int lose_pending(str where) except -1  # ... of one that was raised, and that nobody handles yet
cdef int swallow_pending(str where) except -1
cdef int give(Span finished) except -1  # append to the buffer in use
cdef int record_point(Span point) except -1  # spans.record
cdef object wait_for(object awaitable)  # waiting.waited
