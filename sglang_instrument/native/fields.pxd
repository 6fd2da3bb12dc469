# What other compiled modules may use of fields.pyx.

cdef class Inside:
    cdef readonly frozenset wanted
    cdef readonly Inside around
    cdef dict records
    cdef void end(self)


cdef class Reader:
    cdef tuple fields
    cdef Py_ssize_t slots
    cdef Py_ssize_t arity
    cdef object read(self, object run, object value, Inside inside, long long duration_ns, tuple values)
