# What other compiled modules may use of extras.pyx: fields of a record without a dict.

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

cdef enum:
    FEW = 3  # values that lie in the object itself

cdef enum Kind:
    IS_ABSENT  # there is no such field
    IS_OBJECT  # a reduced value
    IS_FIELDS  # Fields: a dict
    IS_SEVERAL  # Several: a list
    IS_INTEGER
    IS_FLOAT
    IS_NANOSECONDS  # of a duration, which a record has in seconds

cdef union Held:
    PyObject *object  # owned
    long long integer
    double number

cdef struct Value:
    Kind kind
    Held held

@cython.no_gc  # texts
cdef class Names:
    cdef tuple names  # interned
    cdef Py_ssize_t count
    cdef bint binds  # request_id or turn is among them, which win over those that are bound
    cdef bint times  # duration_sec is among them, which wins over the span's own
    cdef bytes keys  # as JSON has them, each with a comma before it and a colon behind; None where it cannot
    cdef int *ends  # of each, in `keys`

@cython.no_gc  # what it holds was reduced
cdef class Fields:
    cdef Names names
    cdef Value *values  # as many as there are names
    cdef Value[FEW] first

@cython.no_gc
cdef class Several:
    cdef Py_ssize_t count
    cdef Value *values

cdef Names names_of(names)
cdef Fields new_fields(Names names)
cdef Several new_several(Py_ssize_t count)
cdef Several several_of(list reduced)
cdef int put_object(Value *value, object reduced) except -1
cdef object value_of(Value *value)
cdef dict dict_of(Fields fields)
cdef Fields both(Names names, Fields first, Fields second)  # of `names` that are those of one and the other

cdef inline bint is_object(Value *value) noexcept:
    return value.kind == IS_OBJECT or value.kind == IS_FIELDS or value.kind == IS_SEVERAL

cdef inline void hold(Value *value, Kind kind, object held) noexcept:
    Py_INCREF(held)
    value.held.object, value.kind = <PyObject *>held, kind

cdef inline void copy_value(Value *to, Value *value) noexcept:
    if is_object(value):
        Py_INCREF(<object>value.held.object)
    to[0] = value[0]

cdef inline Py_ssize_t place_of(Names names, object name) noexcept:
    """Return where an interned name stands, -1 if it does not."""
    cdef Py_ssize_t at
    for at in range(names.count):
        if <PyObject *>(<tuple>names.names)[at] is <PyObject *>name:
            return at
    return -1
