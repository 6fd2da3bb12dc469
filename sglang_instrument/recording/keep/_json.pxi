# Reduced values as JSON. The pure encoder encodes all values that this code cannot: see _encoder.pyx.

from msgspec.json import Encoder as ValueEncoder

cdef enum:
    NAMES = 256  # cached names, by their address
    DEEPEST = 16  # nested collections; reduced values have fewer levels

cdef struct Name:
    char[64] text
    Py_ssize_t size


# A cache of the JSON of event and field names: records use the same few objects again and again.
cdef list names = [None] * NAMES
cdef Name[NAMES] said_names
cdef object encode_float = ValueEncoder().encode


cdef int put_fields(Text *text, dict fields, int depth) except -1:
    """Put a dict's entries, without the braces."""
    cdef PyObject *key
    cdef PyObject *value
    cdef Py_ssize_t place = 0, before = text.size
    while PyDict_Next(fields, &place, &key, &value):  # no Python code runs in this loop: the dict stays as it is
        make_room(text, SMALL)
        if text.size != before:
            put(text, ",", 1)
        if type(<object>key) is not str or put_name(text, <object>key) == CANNOT:
            return CANNOT
        put(text, ":", 1)
        if put_value(text, <object>value, depth) == CANNOT:
            return CANNOT
    return DONE


cdef int put_any_float(Text *text, double number) except -1:
    """Put a float; the caller has made room for a short one."""
    if not put_float(text, number):
        encoded = encode_float(number)
        put(text, PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded))
    return 0


cdef inline int put_name(Text *text, object name) except -1:
    """Put a str that is likely to be used again, with its quotes; leave room for a key and a number."""
    cdef Py_ssize_t begin = text.size, slot = (<size_t><void *>name >> 4) & (NAMES - 1)  # a number only, not dereferenced
    cdef Name *said = &said_names[slot]
    if names[slot] is name:
        make_room(text, 2 * SMALL)
        put_short(text, said.text, said.size)
        return DONE
    if put_string(text, name, LONGEST_LINE) == CANNOT:
        return CANNOT
    if text.size - begin <= 64:
        said.size = text.size - begin
        memcpy(said.text, text.data + begin, said.size)
        names[slot] = name
    make_room(text, SMALL)
    return DONE


cdef int put_value(Text *text, object value, int depth) except -1:
    """Put a reduced value."""
    cdef long long number
    cdef int overflow = 0
    kind = type(value)
    if kind is str:
        return put_string(text, value, LONGEST_LINE)
    make_room(text, SMALL)
    if kind is int:
        number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow == 0:
            put_integer(text, number)
        elif overflow < 0:
            return CANNOT
        else:
            try:
                put_digits(text, PyLong_AsUnsignedLongLong(value))
            except OverflowError:
                return CANNOT
    elif kind is float:
        put_any_float(text, value)
    elif value is None:
        put(text, "null", 4)
    elif value is True:
        put(text, "true", 4)
    elif value is False:
        put(text, "false", 5)
    elif kind is list or kind is tuple:
        return put_list(text, value, depth + 1)
    elif kind is dict and depth < DEEPEST:
        put(text, "{", 1)
        if put_fields(text, value, depth + 1) == CANNOT:
            return CANNOT
        make_room(text, 1)
        put(text, "}", 1)
    else:
        return CANNOT
    return DONE


cdef int put_list(Text *text, object values, int depth) except -1:
    """Put a list or tuple; return CANNOT where it is longer than a line may be."""
    cdef Py_ssize_t begin = text.size
    if depth > DEEPEST:
        return CANNOT
    put(text, "[", 1)
    for value in values:
        if text.size > begin + 1:
            make_room(text, 1)
            put(text, ",", 1)
        if put_value(text, value, depth) == CANNOT or text.size - begin > LONGEST_LINE:
            return CANNOT
    make_room(text, 1)
    put(text, "]", 1)
    return DONE


cdef inline int put_key_if_any(Text *text, const char *key, Py_ssize_t size, object value) except -1:
    """Put a key, with its comma and colon, and its str value; nothing if the value is None."""
    if value is None:
        return DONE
    if type(value) is not str:
        return CANNOT
    make_room(text, size)
    put(text, key, size)
    return put_string(text, value, LONGEST_LINE)
