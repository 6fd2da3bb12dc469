# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, embedsignature=False, binding=False, nonecheck=False
"""recording/measure/values.py, compiled: reduce usual values in C; the pure module reduces the others."""

from cpython.dict cimport PyDict_Copy, PyDict_Next
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_GET_LENGTH

import enum

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        pass
    bint PyType_IsSubtype(PyTypeObject* kind, PyTypeObject* base) noexcept
    Py_ssize_t PyUnicode_FindChar(object text, Py_UCS4 sign, Py_ssize_t start, Py_ssize_t end, int direction)

include "sglang_instrument/native/module.pxi"

cdef object Enum = enum.Enum
# connect() sets these, from recording/measure/values.py, which reduces unusual values.
cdef object reduce_unusual = None
cdef object reduce_entry = None
cdef object reraise_if_programs_own = None
cdef Py_ssize_t LONGEST_TEXT = 0
cdef Py_ssize_t LONGEST_REPR = 0
cdef Py_ssize_t LONGEST_LIST = 0


def connect(dict pure):
    """Take the functions of the pure module, and its limits: characters of a text, of an entry; entries."""
    global reduce_unusual, reduce_entry, reraise_if_programs_own, LONGEST_TEXT, LONGEST_REPR, LONGEST_LIST
    reduce_unusual, reduce_entry = pure["reduce_value"], pure["_entry"]
    reraise_if_programs_own = pure["reraise_if_programs_own"]
    LONGEST_TEXT, LONGEST_REPR = pure["LONGEST_TEXT"], pure["_LONGEST_REPR"]
    LONGEST_LIST = pure["_LONGEST_LIST"]


cdef inline bint has_at(object text):
    """Return whether a text holds an @: it may be an address with a password."""
    return PyUnicode_FindChar(text, u'@', 0, PyUnicode_GET_LENGTH(text), 1) >= 0


cdef inline bint is_plain(object value, Py_ssize_t longest):
    """Return whether a value needs no reducing: a number in 64 bits, a bool, None, a short str without @."""
    cdef int overflow = 0
    kind = type(value)
    if kind is str:
        return PyUnicode_GET_LENGTH(value) <= longest and not has_at(value)
    if kind is float or kind is bool or value is None:
        return True
    if kind is int:
        PyLong_AsLongLongAndOverflow(value, &overflow)
        return overflow == 0  # the few between 2**63 and 2**64 are left to the pure module
    return False


cdef object reduced(object value):
    """Return `value` as `recording.measure.values.reduce_value` does; never raise."""
    if is_plain(value, LONGEST_TEXT):
        return value
    kind = type(value)
    if kind is list or kind is tuple:
        return reduced_list(value)
    if kind is dict:
        return reduced_dict(value)
    # Not isinstance(), which reads the value's __class__: even that may raise.
    if PyType_IsSubtype(<PyTypeObject*>kind, <PyTypeObject*>Enum):
        try:
            named = getattr(value, "_value_", None)
        except BaseException:
            reraise_if_programs_own()
            return reduce_unusual(value)
        if type(named) is str and is_plain(named, LONGEST_REPR):
            return named
    return reduce_unusual(value)


cdef object reduced_list(object value):
    cdef list entries = list(value)  # in C without releasing the GIL: no other thread can change it meanwhile
    cdef Py_ssize_t index, share, size = len(entries)
    if size > LONGEST_LIST:
        return reduce_unusual(value)
    share = (LONGEST_LIST - 1) // max(size, 1)
    for index in range(size):
        entry = entries[index]
        if not is_plain(entry, LONGEST_REPR):
            entries[index] = reduce_entry(entry, 0, share)
    return entries


cdef object reduced_dict(dict value):
    cdef dict copied = PyDict_Copy(value)
    cdef PyObject *key
    cdef PyObject *entry
    cdef Py_ssize_t place = 0
    cdef bint all_plain = True
    if len(copied) > LONGEST_LIST:
        return reduce_unusual(copied)
    # Nothing in this loop runs Python, and no other code has the copy: borrowed references stay valid.
    while PyDict_Next(copied, &place, &key, &entry):
        if type(<object>key) is not str or not is_plain(<object>key, LONGEST_REPR):
            return reduce_unusual(copied)
        if not is_plain(<object>entry, LONGEST_REPR):
            all_plain = False
    return copied if all_plain else reduced_entries(copied)


cdef dict reduced_entries(dict copied):
    """Reduce the entries of a dict with nested collections, such as verl's `reward_scores`."""
    cdef Py_ssize_t share = (LONGEST_LIST - 1) // len(copied)
    for key in list(copied):
        entry = copied[key]
        if not is_plain(entry, LONGEST_REPR):
            listed = list(entry) if type(entry) is list else None
            whole = listed is not None and 0 < share and is_plain_list(listed, share)
            copied[key] = listed if whole else reduce_entry(entry, 0, share)
    return copied


cdef bint is_plain_list(list value, Py_ssize_t room):
    """Whether this is a list of no more than `room` plain entries."""
    if len(value) > room:
        return False
    for entry in value:
        if not is_plain(entry, LONGEST_REPR):
            return False
    return True


cpdef dict reduce(dict extra):
    """Return `extra` with each value reduced; the same dict if no value needs it."""
    cdef PyObject *key
    cdef PyObject *value
    cdef Py_ssize_t place = 0
    while PyDict_Next(extra, &place, &key, &value):  # as above: nothing in this loop runs Python
        if type(<object>key) is not str or not is_plain(<object>value, LONGEST_TEXT):
            return {str.__str__(name): reduced(item) for name, item in extra.items()}
    return extra


def reduce_value(value):
    """Return `value` as a number, string, bool, None, or a short list or dict of these; never raise."""
    return reduced(value)
