# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, embedsignature=False, binding=False, nonecheck=True
"""Read the fields of a region: the trees of `patching.fields`, walked in C, as `patching.readers` says.

What several fields have in common is read once. What is missing is a sentinel, for a Python exception costs
more than a whole reader; a value's own error ends the alternative that met it, and no more.
"""

cimport cython
from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject, PyObject_GetItem
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.sequence cimport PySequence_GetItem
from libc.math cimport fabs, floor, rint
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint64_t

import sys

from sglang_instrument.native.cache cimport CACHE_LINE, fetch_lines
from sglang_instrument.native.context cimport Context, current_context
from sglang_instrument.native.extras cimport (
    IS_ABSENT,
    IS_FLOAT,
    IS_INTEGER,
    IS_NANOSECONDS,
    IS_OBJECT,
    IS_FIELDS,
    IS_SEVERAL,
    Fields,
    Names,
    Several,
    Value,
    copy_value,
    dict_of,
    hold,
    is_object,
    names_of,
    new_fields,
    new_several,
    place_of,
    put_object,
    several_of,
    value_of,
)
from sglang_instrument.native.slabs cimport give_block_back, lie_in_slabs, take_block
from sglang_instrument.native.spans cimport Span
from sglang_instrument.native.values cimport reduced

include "stamp.pxi"

cdef object MISSING = object()  # stands for what cannot be read; leaves this module never
cdef list NONE_FINISHED = []  # is read, and copied, but never handed out
cdef object DURATION_SEC = sys.intern("duration_sec")
cdef object TURN = sys.intern("turn")

# Of `patching.measures` and `recording.context`, which are set by `learn`: what is unusual is left to them.
cdef object UNBOUND = None
cdef object pure_key = None
cdef object pure_elements = None
cdef object pure_truth = None
cdef object pure_size = None
cdef object pure_total = None
cdef object pure_numbers_of = None
cdef object pure_percent = None
cdef object pure_pick = None
cdef object measure_named = None
cdef object bound_to = None
cdef object let_through = None


def learn(measures, bound, letting_through):
    """Take the module `measures`, `bound(name)`, and what lets through what is the program's own."""
    global UNBOUND, pure_key, pure_elements, pure_truth, pure_size, pure_total, pure_numbers_of, pure_percent
    global pure_pick, measure_named, bound_to, let_through
    UNBOUND, pure_key, pure_elements, pure_truth = measures.UNBOUND, measures.key, measures.elements, measures.truth
    pure_size, pure_total, pure_numbers_of = measures.size, measures.total, measures._numbers
    pure_percent, pure_pick, measure_named = measures.percent, measures.pick, measures.measure_named
    bound_to, let_through = bound, letting_through


cdef enum:
    MOST_SLOTS = 16
    MOST_LINES = 48  # of the processor's cache, that are fetched at once

cdef struct Reading:
    # What one run of a reader reads from. Who calls the reader holds all of it but the slots.
    PyObject *run
    PyObject *value
    PyObject *inside
    PyObject *values  # a tuple
    long long duration_ns
    PyObject *slots[MOST_SLOTS]  # owned; NULL where nobody came by yet

include "inside.pxi"
include "steps.pxi"
include "nodes.pxi"
include "totals.pxi"
include "measures.pxi"


cdef int skip(Reader reader, Fields found, Py_ssize_t *at) except -1:
    cdef Alternative *failed = &reader.alternatives[at[0]]
    if failed.asks:
        hold(&found.values[failed.field], IS_OBJECT, True)
        at[0] = failed.next_field
    else:
        at[0] += 1
    return 0


cdef int go_on(Reader reader, Fields found, Reading *reading, Py_ssize_t *at) except -1:
    cdef Alternative *one
    while at[0] < reader.count:
        one = &reader.alternatives[at[0]]
        if (<Node>one.node).fill(reading, one.kept, &found.values[one.field]):
            at[0] = one.next_field
        else:
            at[0] += 1
    return 0


@cython.no_gc
cdef class Reader:
    """Reads fields: (the run that ends, or None at entry; *locals) -> fields. Never raises.

    All that it consists of lies in one piece of memory, which is fetched at once: between two runs of a region
    others use the processor's cache, and to wait for one piece after another takes longer than to read.
    """

    def __dealloc__(self):
        if self.alternatives != NULL:
            give_block_back(self.alternatives)

    def __call__(self, run, /, *values):
        return dict_of(self.read(run, None, None, -1, values))

    cdef Fields read(self, object run, object value, Inside inside, long long duration_ns, tuple values):
        """Return the fields; of a run that is None, what follows it counts."""
        cdef Fields found
        cdef Reading reading
        cdef Py_ssize_t slot, at = 0
        fetch_lines(<const char *><PyObject *>self + CACHE_LINE, self.lines)
        if self.names is None or len(values) != self.arity:
            raise TypeError(f"takes {self.arity} values, got {len(values)}")
        found = new_fields(self.names)
        reading.run, reading.value, reading.inside = <PyObject *>run, <PyObject *>value, <PyObject *>inside
        reading.duration_ns, reading.values = duration_ns, <PyObject *>values
        for slot in range(self.slots):
            reading.slots[slot] = NULL
        try:
            while True:
                try:
                    go_on(self, found, &reading, &at)
                    return found
                except BaseException:  # a value's own code failed: the next alternative, or the next field
                    let_through()
                    skip(self, found, &at)
        finally:
            for slot in range(self.slots):
                Py_XDECREF(reading.slots[slot])


include "maker.pxi"


for kind in (
    Reader, AttributeStep, KeyStep, KeyOfStep, PickStep, EachStep, Local, Whole, Given, Bound, Constant, Unknown, Gone,
    Records, Happened, PickOfEach, FieldOfEach, Numbers, Mean, Measured, Size, Sizes, Total, Totals, Any, AnyOfEach,
    Percent, OfDurations, IsMissing,
):
    lie_in_slabs(kind)
