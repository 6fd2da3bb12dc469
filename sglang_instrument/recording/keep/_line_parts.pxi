# The buffer of a scope's lines, and the part that all lines of a context share.

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
@cython.no_gc  # a scope refers to no Part, and bound ids are strings and numbers
cdef class Part:
    """The part of a line that all records of a context share: `context.shared_json`.

    `text` holds `"extra"` with the bound ids, if any, then `"workid"` and `"step"`, each key after a comma. A
    record without its own fields contains the whole text.
    """

    cdef object scope
    cdef Text text
    cdef const char *ids  # the text between the braces of "extra"
    cdef Py_ssize_t size_ids
    cdef const char *place  # the text after "extra"
    cdef Py_ssize_t size_place
    cdef bint cannot  # a request id that only the pure encoder can encode
    cdef bint validate

    def __dealloc__(self):
        let_go(&self.text)


cdef int put_ids(Text *text, Context context) except -1:
    """Put the bound ids, without braces; the caller has made room for a key and a number."""
    if context.agent is not None or context.parent_request is not None:
        context.ids()
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
