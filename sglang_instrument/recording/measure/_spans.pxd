# What other compiled modules may use of _spans.pyx.
# The classes are those of recording/measure/spans.py, field by field. Nothing leads from a span back to itself: it is
# no_gc, as its Struct is gc=False.

cimport cython

from sglang_instrument.recording.measure._tasks cimport Task

cdef extern from "Python.h":
    ctypedef struct PyObject:
        pass
    ctypedef PyObject* (*vectorcallfunc)(PyObject*, PyObject* const*, size_t, PyObject*)

cdef enum:
    NOT_COUNTED = -1  # waited_ns of a span whose waiting nobody counts; None in Python

@cython.no_gc  # said here too: else a subclass in another module is the collector's
cdef class Block:
    cdef vectorcallfunc called  # see _blocks.pxi
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

cdef int give_ends(object kind) except -1  # lets a type of blocks be entered and left; see _blocks.pxi
cpdef int lose(str where, event=*) except -1  # spans.lose
cdef int lose_pending(str where) except -1  # ... of one that was raised, and that nobody handles yet
cdef int give(Span finished) except -1  # append to the buffer in use
