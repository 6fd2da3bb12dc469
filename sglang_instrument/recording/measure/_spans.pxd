# What other compiled modules may use of _spans.pyx.
# The classes have the fields of those in recording/measure/spans.py. A span never refers back to itself: so it is
# no_gc, as its Struct is gc=False.

cimport cython

from sglang_instrument.recording.measure._tasks cimport Task

cdef extern from "Python.h":
    ctypedef struct PyObject:
        pass
    ctypedef PyObject* (*vectorcallfunc)(PyObject*, PyObject* const*, size_t, PyObject*)

cdef enum:
    NOT_COUNTED = -1  # waited_ns of a span whose waiting is not counted; None in Python

@cython.no_gc  # needed here too: else the garbage collector tracks subclasses in other modules
cdef class Block:
    cdef vectorcallfunc called  # see _blocks.pxi
    cdef public bint entered  # set by spans alone: see reentry.py
    # A `with` block calls these; subclasses override these, not __enter__ and __exit__.
    cdef int enter(self) except -1
    cdef int finish(self, object error, object value) except -1

@cython.no_gc
cdef class Span(Block):
    cdef public object event
    cdef public object extra  # the fields of the record: a dict, or None
    cdef public object given  # those before the first `add`; None without one
    cdef public object phase
    cdef public object context
    cdef public object error
    cdef public Task task
    cdef public object device_sec  # float or None
    cdef public unsigned long thread
    cdef public long long start
    cdef public long long end  # 0 for an instant event
    cdef long long waited_ns  # NOT_COUNTED if waiting is not counted

    # Sets everything that a span has at its start: context, thread and clock are read here.
    cdef int begin(self, object event, object extra, object phase, long long waited_ns) except -1
    cpdef int stop(self, object error, object value) except -1

@cython.no_gc
cdef class WatchedSpan(Span):
    cdef public object open_key  # its key in OPEN: its id(), kept because at its end there may be no memory for an int

@cython.no_gc
cdef class SyncedSpan(WatchedSpan):
    pass

@cython.no_gc
cdef class LostSpan(Span):
    pass

cdef int install_enter_exit(object kind) except -1  # lets `with` enter and leave blocks of a type; see _blocks.pxi
cpdef int drop_record(str where, event=*) except -1  # spans.drop_record
cpdef int append_to_buffer(Span finished) except -1  # spans.append_to_buffer
