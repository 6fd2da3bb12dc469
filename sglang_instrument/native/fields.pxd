# What other compiled modules may use of fields.pyx.

cimport cython
from cpython.object cimport PyObject

from sglang_instrument.native.extras cimport Fields, Names
from sglang_instrument.native.spans cimport Span

cdef class Inside:
    cdef frozenset wanted
    cdef Inside around
    cdef list records  # spans of all wanted events, in the order in which they ended
    cdef int end(self) except -1

cdef Inside collect(frozenset wanted, bint root)
cdef int report(Span span, Inside own) except -1

cdef struct Alternative:
    PyObject *node  # the reader holds it
    int field
    int next_field  # the first alternative of the field behind
    bint kept  # its value is stored as it is
    bint asks  # if there is a value: then an error is an answer

@cython.no_gc  # it leads to names, constants and functions of ours, which lead to no reader
cdef class Reader:
    cdef Py_ssize_t lines  # of the processor's cache, from here on, in which all of it lies; 0 where it lies apart
    cdef Alternative *alternatives  # of all fields in turn: of each the first that resolves counts
    cdef Py_ssize_t count
    cdef list nodes
    cdef Names names
    cdef Py_ssize_t slots
    cdef Py_ssize_t arity
    # Of a run of ours, `run` is None and what follows counts; `duration_ns` is negative where it has none.
    cdef Fields read(self, object run, object value, Inside inside, long long duration_ns, tuple values)
