# Where lines are put, and what lines have in common.

@cython.final
@cython.no_gc
cdef class Sink:
    """The lines of one scope."""

    cdef object scope
    cdef Text text
    cdef Py_ssize_t records
    cdef Py_ssize_t changed

    def __dealloc__(self):
        let_go(&self.text)


@cython.final
@cython.no_gc  # a scope leads nowhere, and what is bound are names and numbers
cdef class Part:
    """What all records of a context share: `context.part`.

    In `text` stand `"extra"` with the ids that are bound, if any are, and `"workid"` and `"step"`, each key after
    a comma: a record without fields of its own has all of it.
    """

    cdef object scope
    cdef Text text
    cdef const char *ids  # what stands between the braces of "extra"
    cdef Py_ssize_t size_ids
    cdef const char *place  # what comes after it
    cdef Py_ssize_t size_place
    cdef bint cannot  # a request id that only the pure Python can say
    cdef bint validate

    def __dealloc__(self):
        let_go(&self.text)


cdef int put_ids(Text *text, Context context) except -1:
    """Put the ids that are bound, as they stand between braces; there is room for a key and a number."""
    if context.fields is not None:
        return put_fields(text, context.fields, 0)
    if context.request_id is not None:
        put(text, '"request_id":', 13)
        if put_value(text, context.request_id, 0) == CANNOT:
            return CANNOT
    if context.turn is not None:
        make_room(text, SMALL)
        if context.request_id is not None:
            put(text, ",", 1)
        put(text, '"turn":', 7)
        return put_value(text, context.turn, 0)
    return DONE


cdef inline void put_seconds(Text *text, long long duration_ns) noexcept nogil:
    """Put nanoseconds as seconds, exactly."""
    cdef uint64_t whole
    if duration_ns < 0:
        put(text, "-", 1)
        duration_ns = -duration_ns
    whole = <uint64_t>duration_ns // 1_000_000_000
    put_decimal(text, whole, <uint64_t>duration_ns - whole * 1_000_000_000, 9)


cdef inline long long floor_us(long long ns) noexcept nogil:
    """Return nanoseconds in microseconds, rounded down as Python does."""
    return ns // 1000
