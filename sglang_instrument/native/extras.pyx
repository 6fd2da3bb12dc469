# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, embedsignature=False, binding=False, nonecheck=False
"""The fields that a table reads, kept without a dict: a name's place is known, and its value is in one block.

A dict has four pieces of memory and counts towards the next search for garbage. Who reads `Span.extra` gets
a dict, made then; the encoder reads this.
"""

cimport cython
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF

import sys

from msgspec.json import encode

from sglang_instrument.native.slabs cimport lie_in_slabs

include "stamp.pxi"


@cython.final
@cython.no_gc
cdef class Names:
    """The names of some fields, in order."""

    def __dealloc__(self):
        PyMem_Free(self.ends)


cdef Names NOTHING = Names.__new__(Names)


@cython.final
@cython.no_gc
cdef class Fields:
    """Values of fields."""

    def __cinit__(self):
        self.values, self.names = self.first, NOTHING

    def __dealloc__(self):
        if self.names is not None:
            let_go(self.values, self.names.count)
        if self.values != self.first:
            PyMem_Free(self.values)


@cython.final
@cython.no_gc
cdef class Several:
    """Values of a list."""

    def __dealloc__(self):
        if self.values != NULL:
            let_go(self.values, self.count)
            PyMem_Free(self.values)


cdef int let_go(Value *values, Py_ssize_t count) except -1:
    cdef Py_ssize_t at
    for at in range(count):
        if is_object(&values[at]):
            Py_XDECREF(values[at].held.object)
    return 0


cdef Several new_several(Py_ssize_t count):
    cdef Several made = Several.__new__(Several)
    cdef Py_ssize_t at
    made.values = <Value *>PyMem_Malloc(max(1, count) * sizeof(Value))
    if made.values == NULL:
        raise MemoryError
    for at in range(count):
        made.values[at].kind = IS_ABSENT
    made.count = count
    return made


cdef Several several_of(list reduced):
    cdef Several made = new_several(len(reduced))
    cdef Py_ssize_t at
    for at in range(made.count):
        put_object(&made.values[at], reduced[at])
    return made


cdef int put_object(Value *value, object reduced) except -1:
    """Put a number as such, anything else as the object that it is."""
    cdef long long number
    cdef int overflow = 0
    kind = type(reduced)
    if kind is int:
        number = PyLong_AsLongLongAndOverflow(reduced, &overflow)
        if overflow == 0:
            value.kind, value.held.integer = IS_INTEGER, number
            return 0
    elif kind is float:
        value.kind, value.held.number = IS_FLOAT, <double>reduced
        return 0
    hold(value, IS_OBJECT, reduced)
    return 0


cdef Names names_of(names):
    cdef Names made = Names.__new__(Names)
    cdef Py_ssize_t at, end = 0
    made.names = tuple([sys.intern(name) for name in names])
    made.count = len(made.names)
    made.binds = "request_id" in made.names or "turn" in made.names
    made.times = "duration_sec" in made.names
    made.ends = <int *>PyMem_Malloc(max(1, made.count) * sizeof(int))
    if made.ends == NULL:
        raise MemoryError
    try:
        keys = [b",%s:" % encode(name) for name in made.names]
    except Exception:  # a lone surrogate: the pure Python says it
        return made
    for at in range(made.count):
        end += len(<bytes>keys[at])
        made.ends[at] = end
    made.keys = b"".join(keys)
    return made


cdef Fields new_fields(Names names):
    cdef Fields made = Fields.__new__(Fields)
    cdef Py_ssize_t at
    if names.count > FEW:
        made.values = <Value *>PyMem_Malloc(names.count * sizeof(Value))
        if made.values == NULL:
            raise MemoryError
    for at in range(names.count):
        made.values[at].kind = IS_ABSENT
    made.names = names
    return made


cdef object value_of(Value *value):
    """Return a value that is there as an object."""
    if value.kind == IS_OBJECT:
        return <object>value.held.object
    if value.kind == IS_INTEGER:
        return value.held.integer
    if value.kind == IS_FLOAT:
        return value.held.number
    if value.kind == IS_NANOSECONDS:
        return value.held.integer / 1e9
    if value.kind == IS_FIELDS:
        return dict_of(<Fields>value.held.object)
    return list_of(<Several>value.held.object)


cdef list list_of(Several several):
    cdef Py_ssize_t at
    return [value_of(&several.values[at]) for at in range(several.count)]


cdef dict dict_of(Fields fields):
    cdef dict made = {}
    cdef Py_ssize_t at
    for at in range(fields.names.count):
        if fields.values[at].kind != IS_ABSENT:
            made[fields.names.names[at]] = value_of(&fields.values[at])
    return made


cdef Fields both(Names names, Fields first, Fields second):
    cdef Fields made = new_fields(names)
    cdef Py_ssize_t at
    for at in range(first.names.count):
        copy_value(&made.values[at], &first.values[at])
    for at in range(second.names.count):
        copy_value(&made.values[first.names.count + at], &second.values[at])
    return made


lie_in_slabs(Names)
lie_in_slabs(Fields)
