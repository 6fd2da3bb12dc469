# Memory that the trainer's core wrote is asked for before it is read: most of a record's cost is waiting for it.

cdef extern from *:
    """
    #define sglang_instrument_fetch(address) __builtin_prefetch((const void *)(address))
    static inline const char *sglang_instrument_keys(PyObject *fields) {
        return (const char *)((PyDictObject *)fields)->ma_keys;
    }
    """
    void fetch "sglang_instrument_fetch"(const void *address) noexcept nogil  # follows no address
    const char *keys_of "sglang_instrument_keys"(PyObject *fields) noexcept nogil

cdef enum:
    FAR = 12  # spans ahead of the one that is encoded
    NEAR = 8
    NEARER = 5
    NEXT = 3


cdef inline int look_ahead(list spans, Py_ssize_t at) except -1:
    """Fetch what the spans after `at` consist of: each stage finds the addresses that the one before fetched."""
    cdef Py_ssize_t size = PyList_GET_SIZE(spans)
    cdef const char *address
    if at + FAR < size:
        address = <const char *>PyList_GET_ITEM(spans, at + FAR)
        fetch(address)
        fetch(address + 64)
        fetch(address + 128)
    if at + NEAR < size and isinstance(spans[at + NEAR], Span):
        address = <const char *><PyObject *>(<Span>spans[at + NEAR]).fields
        fetch(address - 16)  # the collector's part of a dict
        fetch(address + 48)
    if at + NEARER < size and isinstance(spans[at + NEARER], Span):
        fetch_block((<Span>spans[at + NEARER]).fields)
    if at + NEXT < size and isinstance(spans[at + NEXT], Span):
        fetch_values((<Span>spans[at + NEXT]).fields)
    return 0


cdef inline void fetch_block(object fields) noexcept:
    """Fetch where the values of fields are found."""
    cdef const char *address
    if type(fields) is Fields:
        address = <const char *>(<Fields>fields).values
    elif type(fields) is dict:
        address = keys_of(<PyObject *>fields)
    else:
        return
    fetch(address)
    fetch(address + 64)
    fetch(address + 128)


cdef inline void fetch_values(object fields) noexcept:
    """Fetch those values of fields that are objects."""
    cdef PyObject *key
    cdef PyObject *value
    cdef Py_ssize_t place = 0
    if type(fields) is Fields:
        for place in range((<Fields>fields).names.count):
            if (<Fields>fields).values[place].kind == IS_OBJECT:
                fetch((<Fields>fields).values[place].held.object)
    elif type(fields) is dict:
        while PyDict_Next(fields, &place, &key, &value):
            fetch(value)
