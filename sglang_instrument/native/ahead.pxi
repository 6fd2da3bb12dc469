# Memory that the trainer's core wrote is asked for before it is read: most of a record's cost is waiting for it.

cdef extern from *:
    """
    static inline const char *sglang_instrument_keys(PyObject *fields) {
        return (const char *)((PyDictObject *)fields)->ma_keys;
    }
    """
    const char *keys_of "sglang_instrument_keys"(PyObject *fields) noexcept nogil

cdef enum:
    FAR = 12  # spans ahead of the one that is encoded
    NEAR = 8
    NEARER = 5
    NEXT = 3


cdef inline int look_ahead(list spans, Py_ssize_t at) except -1:
    """Fetch what the spans after `at` consist of: each stage finds the addresses that the one before fetched."""
    cdef Py_ssize_t size = PyList_GET_SIZE(spans)
    cdef Span span
    if at + FAR < size:
        fetch_lines(<const char *>PyList_GET_ITEM(spans, at + FAR), 3)
    if at + NEAR < size and isinstance(spans[at + NEAR], Span):
        span = <Span>spans[at + NEAR]
        fetch_lines(<const char *><PyObject *>span.extra - 16, 2)  # a dict has something of the collector's before it
        fetch_lines(<const char *><PyObject *>span.context, 2)
        fetch_lines(<const char *><PyObject *>span.task, 1)
    if at + NEARER < size and isinstance(spans[at + NEARER], Span):
        span = <Span>spans[at + NEARER]
        fetch_block(span.extra)
        if type(span.context) is Context:
            fetch_lines(<const char *><PyObject *>(<Context>span.context).part, 2)
    if at + NEXT < size and isinstance(spans[at + NEXT], Span):
        span = <Span>spans[at + NEXT]
        fetch_values(span.extra)
        if type(span.context) is Context and type((<Context>span.context).part) is Part:
            fetch_lines((<Part>(<Context>span.context).part).text.data, 2)
    return 0


cdef inline void fetch_block(object fields) noexcept:
    """Fetch where the values of fields are found."""
    if type(fields) is dict:
        fetch_lines(keys_of(<PyObject *>fields), 3)


cdef inline void fetch_values(object fields) noexcept:
    """Fetch those values of fields that are objects."""
    cdef PyObject *key
    cdef PyObject *value
    cdef Py_ssize_t place = 0
    if type(fields) is dict:
        while PyDict_Next(fields, &place, &key, &value):
            fetch(value)
