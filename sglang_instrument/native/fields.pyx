# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, embedsignature=False, binding=False, nonecheck=True
"""Read the fields of a region: the trees of `patching.fields`, walked in C, as `patching.readers` says.

What several fields have in common is read once. What is missing is a sentinel, for a Python exception costs
more than a whole reader; a value's own error ends the alternative that met it, and no more.
"""

cimport cython
from cpython.dict cimport PyDict_GetItemWithError
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject, PyObject_GetItem
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.sequence cimport PySequence_GetItem
from libc.math cimport fabs, floor, rint
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint64_t

import sys

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
from sglang_instrument.native.spans cimport Span
from sglang_instrument.native.values cimport reduced

include "stamp.pxi"

cdef extern from *:
    """
    #include <stdint.h>
    typedef struct { int32_t device_type; int32_t device_id; } si_dl_device;
    typedef struct { uint8_t code; uint8_t bits; uint16_t lanes; } si_dl_dtype;
    typedef struct {
        void *data; si_dl_device device; int32_t ndim; si_dl_dtype dtype;
        int64_t *shape; int64_t *strides; uint64_t byte_offset;
    } si_dl_tensor;  /* of DLPack; a DLManagedTensor begins with it */
    """
    ctypedef struct si_dl_device:
        int32_t device_type
    ctypedef struct si_dl_dtype:
        uint8_t code
        uint8_t bits
        uint16_t lanes
    ctypedef struct si_dl_tensor:
        void *data
        si_dl_device device
        int32_t ndim
        si_dl_dtype dtype
        int64_t *shape
        int64_t *strides
        uint64_t byte_offset

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


def learn(measures, bound):
    """Take the module `measures`, and `bound(name)`."""
    global UNBOUND, pure_key, pure_elements, pure_truth, pure_size, pure_total, pure_numbers_of, pure_percent
    global pure_pick, measure_named, bound_to
    UNBOUND, pure_key, pure_elements, pure_truth = measures.UNBOUND, measures.key, measures.elements, measures.truth
    pure_size, pure_total, pure_numbers_of = measures.size, measures.total, measures._numbers
    pure_percent, pure_pick, measure_named = measures.percent, measures.pick, measures.measure_named
    bound_to = bound


# ---- what finished within


@cython.no_gc  # its records are spans that have ended: they lead to no Inside any more
@cython.freelist(64)
cdef class Inside:
    """The regions that finished within one run of a region, by event: those that it reads.

    A record of one is the span itself; where somebody wants it whole it becomes a dict.
    """

    cdef int end(self) except -1:
        self.records = None
        self.wanted = frozenset()
        return 0

    def __getitem__(self, event):
        """Return the records of an event, as dicts."""
        return as_dicts(seen_by(self), event)

    def __iter__(self):
        return iter(())  # it is asked by event alone


cdef inline Inside innermost(Inside but):
    """Return the innermost open region's around the code that runs; not `but`, which is about to end."""
    cdef Inside inside = current_context().inside
    return inside if inside is not but or but is None else but.around


cdef Inside collect(frozenset wanted, bint root):
    """Begin to keep the `wanted` events; a `root` reports to nobody around it."""
    cdef Inside inside = Inside.__new__(Inside)
    inside.wanted = wanted
    inside.around = None if root else innermost(None)
    return inside


cdef int report(Span span, Inside own) except -1:
    """Give a finished region to all open regions around it that read its event."""
    cdef Inside around = innermost(own)
    while around is not None:
        if span.event in around.wanted:
            if around.records is None:
                around.records = []
            around.records.append(span)
        around = around.around
    return 0


cdef list seen_by(Inside inside):
    """Return the spans of all events that are read."""
    return NONE_FINISHED if inside is None or inside.records is None else inside.records


cdef list seen_before(object event, Inside own):
    """Return what finished so far within the innermost open region that reads this event, but `own`."""
    cdef Inside around = innermost(own)
    while around is not None:
        if event in around.wanted:
            return seen_by(around)
        around = around.around
    return NONE_FINISHED


def before(event):
    """Return the records of what finished so far within the innermost open region that reads this event."""
    return as_dicts(seen_before(event, None), event)


cdef list as_dicts(list spans, object event):
    return [as_dict(<Span>span) for span in spans if is_of(<Span>span, event)]


cdef inline bint is_of(Span span, object event) noexcept:
    return span.event is event  # both are interned


cdef dict as_dict(Span span):
    cdef dict record = {}
    turn = (<Context?>span.context).turn
    if turn is not None:
        record["turn"] = turn
    record["duration_sec"] = (span.end - span.start) / 1e9
    if span.fields is not None:
        record.update(span.extra)
    return record


cdef bint find_field(Span span, object name, Value *to) except -1:
    """Copy the field of a record that has an interned name; return whether it has one."""
    cdef PyObject *found
    cdef Fields fields
    cdef Py_ssize_t at
    if type(span.fields) is Fields:
        fields = <Fields>span.fields
        at = place_of(fields.names, name)
        if at >= 0 and fields.values[at].kind != IS_ABSENT:
            copy_value(to, &fields.values[at])
            return True
    elif span.fields is not None:
        found = PyDict_GetItemWithError(span.fields, name)
        if found is not NULL:
            hold(to, IS_OBJECT, <object>found)
            return True
    if name is DURATION_SEC:
        to.kind, to.held.integer = IS_NANOSECONDS, span.end - span.start
        return True
    turn = (<Context?>span.context).turn if name is TURN else None
    if turn is None:
        return False
    hold(to, IS_OBJECT, turn)
    return True


cdef object field_of(Span span, object name):
    """Return a field of a record, MISSING where it has none."""
    cdef Value found
    if not find_field(span, name, &found):
        return MISSING
    value = value_of(&found)
    if is_object(&found):
        Py_XDECREF(found.held.object)
    return value


cdef enum:
    MOST_SLOTS = 16

cdef struct Reading:
    # What one run of a reader reads from. Who calls the reader holds all of it but the slots.
    PyObject *run
    PyObject *value
    PyObject *inside
    PyObject *values  # a tuple
    long long duration_ns
    PyObject *slots[MOST_SLOTS]  # owned; NULL where nobody came by yet


# ---- steps: from one object to the next


cdef class Step:
    cdef object go(self, object here, tuple values):
        raise NotImplementedError


cdef class AttributeStep(Step):
    cdef str name

    cdef object go(self, object here, tuple values):
        return getattr(here, self.name, MISSING)


cdef class KeyStep(Step):
    cdef object key

    cdef object go(self, object here, tuple values):
        return at(here, self.key)


cdef class KeyOfStep(Step):
    """Take the key that lies at a path of attributes of a local."""

    cdef Py_ssize_t local
    cdef tuple attributes

    cdef object key(self, tuple values):
        found = values[self.local] if self.local >= 0 else MISSING
        for name in self.attributes:
            if found is MISSING:
                break
            found = getattr(found, <str>name, MISSING)
        return found

    cdef object go(self, object here, tuple values):
        key = self.key(values)
        return MISSING if key is MISSING else at(here, key)


cdef class PickStep(Step):
    cdef tuple names

    cdef object go(self, object here, tuple values):
        return pure_pick(here, self.names)


cdef class EachStep(Step):
    """Go over all elements, or those whose attribute is true; `rest` leads on from each."""

    cdef Step asked
    cdef object field  # that a record must have to count
    cdef Step field_of
    cdef tuple rest

    cdef object go(self, object here, tuple values):
        cdef list found = []
        kind = type(here)
        if kind is list:
            for each in <list>here:
                if not self.add(found, each, values):
                    return MISSING
            return found
        for each in here.values() if kind is dict else pure_elements(here):
            if not self.add(found, each, values):
                return MISSING
        return found

    cdef bint add(self, list found, object each, tuple values) except -1:
        """Add what `each` leads to, if it counts; return whether all could be read."""
        cdef Step step
        if self.field is not None and self.field not in each:
            return True
        if self.field_of is not None:
            key = (<KeyOfStep>self.field_of).key(values)
            if key is MISSING:
                return False
            if key not in each:
                return True
        if self.asked is not None:
            answer = self.asked.go(each, values)
            if answer is MISSING:
                return False
            if not truth(answer):
                return True
        for step in self.rest:
            each = step.go(each, values)
            if each is MISSING:
                return False
        found.append(each)
        return True


cdef object at(object here, object key):
    """Return `here[key]`, MISSING where the usual collections have no such entry."""
    cdef PyObject *found
    cdef Py_ssize_t index, size
    kind = type(here)
    if kind is dict:
        found = PyDict_GetItemWithError(here, key)
        return MISSING if found is NULL else <object>found
    if (kind is list or kind is tuple) and type(key) is int:
        index, size = key, len(here)
        return PySequence_GetItem(here, index) if -size <= index < size else MISSING
    return pure_key(here, key)


# ---- nodes: what a path has come to, from the reader's arguments on


cdef class Node:
    cdef int slot  # where its value is remembered; -1 where one field alone comes by

    def __cinit__(self):
        self.slot = -1

    cdef object find(self, Reading *reading):
        raise NotImplementedError

    cdef bint fill(self, Reading *reading, bint kept, Value *to) except -1:
        """Put what is found, reduced unless it is kept as it is; return whether there is anything."""
        value = get(self, reading)
        if value is MISSING:
            return False
        kind = type(value)
        if not (kept or kind is int or kind is float or kind is bool or value is None):
            value = reduced(value)
        if type(value) is list:
            hold(to, IS_SEVERAL, several_of(value))
        else:
            put_object(to, value)
        return True


cdef inline object get(Node node, Reading *reading):
    if node.slot < 0:
        return node.find(reading)
    if reading.slots[node.slot] is not NULL:
        return <object>reading.slots[node.slot]
    found = node.find(reading)  # which leads to other nodes: no path leads through itself
    Py_INCREF(found)
    reading.slots[node.slot] = <PyObject *>found
    return found


cdef class Local(Node):
    cdef Py_ssize_t index

    cdef object find(self, Reading *reading):
        return (<tuple>reading.values)[self.index]


cdef class Whole(Node):
    """A local that is read as it is: it may have no value."""

    cdef Node of

    cdef object find(self, Reading *reading):
        found = get(self.of, reading)
        return MISSING if found is UNBOUND else found


cdef class Given(Node):
    """What the function returned, or the item that a generator gave."""

    cdef object find(self, Reading *reading):
        run = <object>reading.run
        return <object>reading.value if run is None else getattr(run, "value", MISSING)


cdef class Bound(Node):
    cdef str name

    cdef object find(self, Reading *reading):
        return bound_to(self.name)


cdef class Constant(Node):
    cdef object value

    cdef object find(self, Reading *reading):
        return self.value


cdef class Unknown(Node):
    """A name that is none of the reader's."""

    cdef object find(self, Reading *reading):
        return MISSING


cdef class Gone(Node):
    """One step further than another node."""

    cdef Node of
    cdef Step step

    cdef object find(self, Reading *reading):
        here = get(self.of, reading)
        return MISSING if here is MISSING else self.step.go(here, <tuple>reading.values)


cdef inline bint is_given(Reading *reading) noexcept:
    """Whether the run that ends is not one of ours, but what a test hands over."""
    return <object>reading.run is not None


cdef class Records(Node):
    """The records of the regions of an event: finished within this run, or before it in the one around."""

    cdef object event
    cdef bint before

    cdef object find(self, Reading *reading):
        run = <object>reading.run
        if run is not None:
            return run.inside.get(self.event, []) if not self.before else before(self.event)
        return as_dicts(self.spans(reading), self.event)

    cdef list spans(self, Reading *reading):
        """Return spans, among them those of the event, of a run of ours."""
        inside = <Inside><object>reading.inside
        return seen_before(self.event, inside) if self.before else seen_by(inside)


cdef class Happened(Node):
    """Whether there are any records."""

    cdef Records of
    cdef bint none

    cdef object find(self, Reading *reading):
        if is_given(reading):
            return bool(self.of.find(reading)) != self.none
        for span in self.of.spans(reading):
            if is_of(<Span>span, self.of.event):
                return not self.none
        return self.none


cdef class PickOfEach(Node):
    """Some fields of each record, under other names."""

    cdef Records of
    cdef tuple names
    cdef Names new
    cdef tuple old

    cdef object find(self, Reading *reading):
        cdef Several rows
        cdef Py_ssize_t at
        if is_given(reading):
            return [pure_pick(record, self.names) for record in self.of.find(reading)]
        rows = self.rows(reading)
        return [dict_of(<Fields>rows.values[at].held.object) for at in range(rows.count)]

    cdef bint fill(self, Reading *reading, bint kept, Value *to) except -1:
        if is_given(reading) or not kept:
            return Node.fill(self, reading, kept, to)
        hold(to, IS_SEVERAL, self.rows(reading))
        return True

    cdef Several rows(self, Reading *reading):
        cdef list spans = [one for one in self.of.spans(reading) if is_of(<Span>one, self.of.event)]
        cdef Several made = new_several(len(spans))
        cdef Py_ssize_t at
        for at in range(made.count):
            hold(&made.values[at], IS_FIELDS, self.picked(<Span>spans[at]))
        return made

    cdef Fields picked(self, Span span):
        cdef Fields found = new_fields(self.new)
        cdef Py_ssize_t at
        for at in range(self.new.count):
            find_field(span, self.old[at], &found.values[at])
        return found


cdef class FieldOfEach(Node):
    """A field of all records that have it."""

    cdef Records of
    cdef str name

    cdef object find(self, Reading *reading):
        cdef list found = []
        if is_given(reading):
            return [record[self.name] for record in self.of.find(reading) if self.name in record]
        for span in self.of.spans(reading):
            if is_of(<Span>span, self.of.event):
                value = field_of(<Span>span, self.name)
                if value is not MISSING:
                    found.append(value)
        return found


# ---- measures


cdef bint truth(object value) except -1:
    kind = type(value)
    if (
        kind is bool or value is None or kind is list or kind is dict or kind is str or kind is int
        or kind is float or kind is tuple
    ):
        return bool(value)
    return pure_truth(value)


cdef inline bint is_number(object value):
    kind = type(value)
    return kind is int or kind is float or kind is bool


cdef bint all_numbers(list values):
    """Whether all are plain numbers; nothing in here runs Python."""
    for value in values:
        if not is_number(value):
            return False
    return True


cdef object size_of(object value):
    kind = type(value)
    if kind is list or kind is str or kind is dict or kind is tuple:
        return len(value)
    shape = getattr(value, "shape", None)
    if shape is not None and len(shape):
        last = PySequence_GetItem(shape, -1) if isinstance(shape, tuple) else PyObject_GetItem(shape, -1)
        return last if type(last) is int else int(last)
    return len(value)


cdef object total_of(object value):
    kind = type(value)
    if kind is int or kind is float or kind is bool:
        return value
    if kind is list or kind is tuple:
        return sum(value)
    if kind is dict:
        return sum(value.values())
    found = tensor_total(value)
    return pure_total(value) if found is None else found


cdef object Tensor = None  # torch's, as soon as one was seen
cdef object to_dlpack = None
cdef enum:
    MOST_SUMMED = 1 << 16  # elements: here the GIL is held, while torch gives it away for a longer sum


cdef bint ADDS_PLAINLY = sys.version_info < (3, 12)  # since then, sum() makes up for what each addition loses


cdef bint is_plain_sum(list values, double *total):
    """Whether these are floats whose sum is what one gets by adding them in turn, and that sum."""
    if not values or (len(values) > 2 and not ADDS_PLAINLY):
        return False
    total[0] = 0.0
    for value in values:
        if type(value) is not float:
            return False
        total[0] += <double>value
    return True


cdef object sum_of(list values):
    cdef double total = 0
    if not values:
        return 0
    return total if is_plain_sum(values, &total) else sum(values)


cdef bint is_tensor(object value):
    """Whether this is a plain tensor of torch, which nobody imports here."""
    global Tensor, to_dlpack
    kind = type(value)
    if Tensor is None and kind.__module__ == "torch" and kind.__name__ == "Tensor":
        dlpack = sys.modules.get("torch.utils.dlpack")
        to_dlpack = getattr(dlpack, "to_dlpack", None)
        if to_dlpack is not None:
            Tensor = kind
    return kind is Tensor


cdef object tensor_total(object value):
    """Return the sum of a tensor of integers in memory, in a sixth of the time that `.sum().item()` takes.

    None for any other: the sum of floats depends on the order in which they are added.
    """
    if not is_tensor(value) or value.is_cpu is not True:
        return None
    try:
        capsule = to_dlpack(value)  # it holds on to the tensor while it is looked at
    except Exception:  # one of bool in an old torch, a sparse one, one that a transformation looks through
        return None
    if not PyCapsule_IsValid(capsule, "dltensor"):
        return None
    cdef si_dl_tensor *seen = <si_dl_tensor *>PyCapsule_GetPointer(capsule, "dltensor")
    if seen.device.device_type != 1 or seen.dtype.lanes != 1 or seen.data is NULL:
        return None
    cdef int64_t count = count_of(seen)
    if count < 0 or count > MOST_SUMMED:
        return None
    cdef char *data = <char *>seen.data + seen.byte_offset
    cdef uint64_t total = 0  # wraps around where torch's does
    cdef int64_t index
    cdef int code = seen.dtype.code, bits = seen.dtype.bits
    if code == 0 and bits == 64:
        for index in range(count):
            total += <uint64_t>(<int64_t *>data)[index]
    elif code == 0 and bits == 32:
        for index in range(count):
            total += <uint64_t><int64_t>(<int32_t *>data)[index]
    elif (code == 1 or code == 6) and bits == 8:
        for index in range(count):
            total += (<uint8_t *>data)[index]
    else:
        return None
    return <int64_t>total


cdef int64_t count_of(si_dl_tensor *seen) noexcept:
    """Return how many numbers lie one behind the other, -1 where there are gaps."""
    cdef int64_t count = 1
    cdef int axis
    for axis in range(seen.ndim - 1, -1, -1):
        if seen.strides is not NULL and seen.shape[axis] != 1 and seen.strides[axis] != count:
            return -1
        count *= seen.shape[axis]
    return count


cdef class Numbers(Node):
    """The numbers that a list holds, or the sizes of what is none."""

    cdef Node of

    cdef object find(self, Reading *reading):
        found = get(self.of, reading)
        if found is MISSING:
            return MISSING
        if type(found) is not list:
            return pure_numbers_of(found)
        if all_numbers(found):
            return found
        return [value if isinstance(value, (int, float)) else size_of(value) for value in <list>found]


cdef class Mean(Node):
    cdef Node of  # Numbers

    cdef object find(self, Reading *reading):
        cdef list numbers
        found = get(self.of, reading)
        if found is MISSING:
            return MISSING
        numbers = found
        return sum_of(numbers) / len(numbers) if numbers else 0


cdef class Measured(Node):
    """A measure of `patching.measures` that is not one of those below."""

    cdef Node of
    cdef object measure

    cdef object find(self, Reading *reading):
        found = get(self.of, reading)
        return MISSING if found is MISSING else self.measure(found)


cdef class Size(Measured):
    cdef object find(self, Reading *reading):
        found = get(self.of, reading)
        return MISSING if found is MISSING else size_of(found)

    cdef bint fill(self, Reading *reading, bint kept, Value *to) except -1:
        if self.slot >= 0:
            return Node.fill(self, reading, kept, to)
        found = get(self.of, reading)
        kind = type(found)
        if kind is list or kind is str or kind is dict or kind is tuple:
            to.kind, to.held.integer = IS_INTEGER, len(found)
            return True
        if found is MISSING:
            return False
        hold(to, IS_OBJECT, reduced(size_of(found)))
        return True


cdef class Sizes(Measured):
    cdef object find(self, Reading *reading):
        found = get(self.of, reading)
        if type(found) is not list:
            return MISSING if found is MISSING else self.measure(found)
        if are_numbers(found):
            return len(found)
        return [size_of(value) for value in <list>found]


cdef class Total(Measured):
    cdef object find(self, Reading *reading):
        found = get(self.of, reading)
        return MISSING if found is MISSING else total_of(found)


cdef class Totals(Measured):
    cdef bint something  # asked for: nothing adds up to nothing

    cdef object find(self, Reading *reading):
        found = get(self.of, reading)
        if type(found) is not list:
            return MISSING if found is MISSING else self.measure(found)
        if self.something and not found:
            return MISSING
        if are_numbers(found):
            return sum_of(found)
        return [total_of(value) for value in <list>found]


cdef bint are_numbers(list values) except -1:
    if all_numbers(values):
        return True
    for value in values:
        if not isinstance(value, (int, float)):
            return False
    return True


cdef class Any(Measured):
    cdef bint none

    cdef object find(self, Reading *reading):
        found = get(self.of, reading)
        return MISSING if found is MISSING else truth(found) != self.none


cdef class AnyOfEach(Any):
    cdef object find(self, Reading *reading):
        found = get(self.of, reading)
        if type(found) is not list:
            return MISSING if found is MISSING else self.measure(found)
        for value in <list>found:
            if truth(value):
                return not self.none
        return self.none


cdef class Percent(Measured):
    """The total as per cent of the run's own duration; `numbers` of a list."""

    cdef object find(self, Reading *reading):
        cdef double total, duration_sec
        found = get(self.of, reading)
        if found is MISSING:
            return MISSING
        if is_given(reading):
            return pure_percent(found, (<object>reading.run).duration_sec)
        if reading.duration_ns < 0:
            return MISSING
        duration_sec = reading.duration_ns / 1e9
        if type(found) is not list or duration_sec == 0:
            return pure_percent(found, duration_sec)
        if not found:
            return 0.0
        if not is_plain_sum(found, &total):
            return pure_percent(found, duration_sec)
        return percent_of(total, duration_sec)


cdef double percent_of(double total, double duration_sec) except? -1:
    cdef double share = 100 * total / duration_sec, hundredths = share * 100
    if fabs(hundredths) < 1e9 and fabs(hundredths - floor(hundredths) - 0.5) > 1e-4:
        return rint(hundredths) / 100  # what round() gives where nothing is near the middle
    return round(share, 2)


cdef enum Sum:
    NO_SUM, TOTAL, SUM, MEAN, PERCENT


cdef class OfDurations(Node):
    """A total, mean or percentage of the durations of regions, of which no list is made."""

    cdef FieldOfEach of
    cdef Node listed  # does the same by a list
    cdef Sum what

    cdef object find(self, Reading *reading):
        return self.listed.find(reading)

    cdef bint fill(self, Reading *reading, bint kept, Value *to) except -1:
        cdef double total = 0, duration_sec = reading.duration_ns / 1e9
        cdef long long last_ns = 0
        cdef Py_ssize_t count = 0
        if is_given(reading) or not self.add(self.of.of.spans(reading), &total, &count, &last_ns):
            return Node.fill(self, reading, kept, to)
        if self.what == PERCENT:
            if duration_sec <= 0:
                return Node.fill(self, reading, kept, to)
            to.kind, to.held.number = IS_FLOAT, percent_of(total, duration_sec) if count else 0.0
        elif count == 0:
            if self.what == SUM:
                return False
            to.kind, to.held.integer = IS_INTEGER, 0
        elif count == 1:
            to.kind, to.held.integer = IS_NANOSECONDS, last_ns
        else:
            to.kind, to.held.number = IS_FLOAT, total / count if self.what == MEAN else total
        return True

    cdef bint add(self, list spans, double *total, Py_ssize_t *count, long long *last_ns) except -1:
        """Add up the durations, as sum() does it; return whether that could be done."""
        cdef Span span
        for one in spans:
            span = <Span>one
            if not is_of(span, self.of.of.event):
                continue
            if type(span.fields) is Fields:
                if (<Fields>span.fields).names.times:
                    return False
            elif span.fields is not None and DURATION_SEC in span.fields:
                return False
            last_ns[0] = span.end - span.start
            total[0] += last_ns[0] / 1e9
            count[0] += 1
        return count[0] <= 2 or ADDS_PLAINLY


cdef class IsMissing(Node):
    cdef Node of

    cdef object find(self, Reading *reading):
        found = get(self.of, reading)
        return found is MISSING or found is None


# ---- a reader


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


@cython.no_gc_clear  # its alternatives are borrowed from its nodes, as long as it can be called
cdef class Reader:
    """Reads fields: (the run that ends, or None at entry; *locals) -> fields. Never raises."""

    def __dealloc__(self):
        PyMem_Free(self.alternatives)

    def __call__(self, run, /, *values):
        return dict_of(self.read(run, None, None, -1, values))

    cdef Fields read(self, object run, object value, Inside inside, long long duration_ns, tuple values):
        """Return the fields; of a run that is None, what follows it counts."""
        cdef Fields found
        cdef Reading reading
        cdef Py_ssize_t slot, at = 0
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
                except Exception:  # a value's own code failed: the next alternative, or the next field
                    skip(self, found, &at)
        finally:
            for slot in range(self.slots):
                Py_XDECREF(reading.slots[slot])


# ---- how a reader is made


@cython.boundscheck(True)
@cython.wraparound(True)
cdef class _Maker:
    """Makes the nodes of a reader's fields; paths that begin alike share theirs."""

    cdef dict indices
    cdef dict known
    cdef list shared

    def __init__(self, names):
        self.indices = {name: index for index, name in enumerate(names)}
        self.known = {}
        self.shared = []

    def node(self, key, make):
        """Return the node of a key; from its second use on it remembers its value."""
        cdef Node node
        if key in self.known:
            node = self.known[key]
            if node.slot < 0 and not isinstance(node, (Local, Constant)) and len(self.shared) < MOST_SLOTS:
                node.slot = len(self.shared)
                self.shared.append(node)
            return node
        node = self.known[key] = make()
        return node

    def field(self, expression):
        """Return the alternatives of a field: node, whether its value is kept as it is, whether it asks."""
        made = []
        for value in expression.alternatives:
            is_constant = not hasattr(value, "steps")
            node = self.constant(value.value) if is_constant else self.value(value, expression)
            kept = is_constant or self.is_of_records(value, expression)
            made.append((node, kept, not is_constant and value.function == "missing"))
        return made

    def constant(self, value):
        cdef Constant constant = Constant()
        constant.value = value
        return constant

    def is_of_records(self, path, expression):
        return path.root in ("inside", "before") and expression.is_root(path)

    def value(self, path, expression):
        """Return the node of a path and its function."""
        cdef IsMissing asking
        node, key = self.walk(path, expression)
        function = path.function
        if function is None:
            return node
        if function == "missing":
            asking = IsMissing()
            asking.of = node
            return asking
        each = any(step.kind == "each" for step in path.steps)
        return self.node((key, each, function), lambda: self.measured(function, each, node, key))

    def measured(self, function, each, node, key):
        made = self.listed(function, each, node, key)
        what = SUMS.get(function)
        if what is None or not isinstance(node, FieldOfEach) or (<FieldOfEach>node).name != DURATION_SEC:
            return made
        return of_durations(node, made, what)

    def listed(self, function, each, node, key):
        cdef Measured measured
        cdef Numbers numbers
        cdef Mean mean
        if function == "percent":
            measured = Percent()
            measured.of = node
            return measured
        if function in ("any", "not") and isinstance(node, Records):
            return happened(node, function == "not")
        measure = measure_named(function)[each]
        if function in ("mean", "min", "max") or function[0] == "p" or function.startswith("over"):
            numbers = Numbers()
            numbers.of = node
            numbers = self.node((key, "numbers"), lambda: numbers)
            if function == "mean":
                mean = Mean()
                mean.of = numbers
                return mean
            measured = Measured()
            measured.of, measured.measure = numbers, measure
            return measured
        kinds = {
            ("size", False): Size, ("size", True): Sizes, ("total", False): Total, ("total", True): Totals,
            ("sum", True): Totals, ("any", False): Any, ("any", True): AnyOfEach, ("not", False): Any,
            ("not", True): AnyOfEach,
        }
        measured = kinds.get((function, each), Measured)()
        measured.of, measured.measure = node, measure
        if isinstance(measured, Totals):
            (<Totals>measured).something = function == "sum"
        if isinstance(measured, Any):
            (<Any>measured).none = function == "not"
        return measured

    def walk(self, path, expression):
        """Return the node at a path's end, and the key by which others find it."""
        if self.is_of_records(path, expression):
            return self.records(path)
        node, key, steps = self.root(path, expression)
        if not path.steps:
            return self.node((key, "whole"), lambda: whole(node)), (key, "whole")
        return self.along(node, key, steps, False)

    def root(self, path, expression):
        if not expression.is_root(path):
            return self.node(("local", path.root), lambda: self.local(path.root)), ("local", path.root), path.steps
        if path.root == "bound":
            name = path.steps[0].name
            return self.node(("bound", name), lambda: bound(name)), ("bound", name), path.steps[1:]
        if path.root == "modules":
            return self.node("modules", lambda: self.constant(sys.modules)), "modules", path.steps
        return self.node("value", Given), "value", path.steps

    def local(self, name):
        cdef Local local
        if name not in self.indices:
            return Unknown()
        local = Local()
        local.index = self.indices[name]
        return local

    def records(self, path):
        cdef object key = (path.root, path.steps[0].name)
        event = sys.intern(path.steps[0].name)  # what is compared often is compared by its place in memory
        node = self.node(key, lambda: records(event, path.root == "before"))
        steps = path.steps[1:]
        if [(step.kind, step.of) for step in steps] == [("each", None), ("attribute", None)] and not steps[0].name:
            name = sys.intern(steps[1].name)
            return self.node((key, name), lambda: field_of_each(node, name)), (key, name)
        if [step.kind for step in steps] == ["each", "pick"] and not steps[0].name:
            key = (key, steps[1].names)
            return self.node(key, lambda: pick_of_each(node, steps[1].names)), key
        return self.along(node, key, steps, True)

    def along(self, node, key, steps, of_records):
        for index, step in enumerate(steps):
            key = (key, step if step.kind != "each" else tuple(steps[index:]), of_records)
            before, made = node, self.step(steps[index:], of_records)
            node = self.node(key, lambda: gone(before, made))
            if step.kind == "each":
                break
        return node, key

    def step(self, steps, of_records):
        """Return the first of some steps; one over all elements takes the others with it."""
        cdef EachStep each
        cdef AttributeStep attribute
        cdef KeyStep key
        cdef PickStep pick
        step = steps[0]
        if step.kind == "pick":
            pick = PickStep()
            pick.names = tuple(map(tuple, step.names))
            return pick
        if step.kind == "attribute" and not of_records:
            attribute = AttributeStep()
            attribute.name = sys.intern(str(step.name))
            return attribute
        if step.kind != "each":
            return self.key_step(step)
        each = EachStep()
        rest = list(steps[1:])
        if step.name:
            each.asked = self.step([type(step)("attribute", step.name)], of_records)
        if of_records and rest and rest[0].kind in ("attribute", "key"):
            if rest[0].of is None:
                each.field = rest[0].name
            else:
                each.field_of = self.key_step(rest[0])
        each.rest = tuple(self.rest(rest, of_records))
        return each

    def rest(self, steps, of_records):
        for index, step in enumerate(steps):
            yield self.step(steps[index:], of_records)
            if step.kind == "each":
                return

    def key_step(self, step):
        cdef KeyStep key
        cdef KeyOfStep of
        if step.of is None:
            key = KeyStep()
            key.key = step.name
            return key
        of = KeyOfStep()
        of.local = self.indices.get(step.of.root, -1)
        of.attributes = tuple([str(attribute.name) for attribute in step.of.steps])
        return of


cdef dict SUMS = {"total": TOTAL, "sum": SUM, "mean": MEAN, "percent": PERCENT}


cdef Node of_durations(FieldOfEach of, Node listed, Sum what):
    cdef OfDurations node = OfDurations()
    node.of, node.listed, node.what = of, listed, what
    return node


cdef Node whole(Node of):
    cdef Whole node = Whole()
    node.of = of
    return node


cdef Node bound(name):
    cdef Bound node = Bound()
    node.name = name
    return node


cdef Node gone(Node of, Step step):
    cdef Gone node = Gone()
    node.of, node.step = of, step
    return node


cdef Node records(event, before):
    cdef Records node = Records()
    node.event, node.before = event, before
    return node


cdef Node field_of_each(Records of, name):
    cdef FieldOfEach node = FieldOfEach()
    node.of, node.name = of, name
    return node


cdef Node pick_of_each(Records of, names):
    cdef PickOfEach node = PickOfEach()
    node.of, node.names = of, tuple(map(tuple, names))
    node.new, node.old = names_of([new for new, _ in names]), tuple([sys.intern(old) for _, old in names])
    return node


cdef Node happened(Records of, none):
    cdef Happened node = Happened()
    node.of, node.none = of, none
    return node


def reader(expressions, names):
    """Return what reads parsed expressions, by name, from a run and the values of the locals `names`."""
    cdef Reader made = Reader()
    cdef Alternative *one
    cdef Py_ssize_t at
    cdef Node node
    maker = _Maker(names)
    fields = [maker.field(expression) for expression in expressions.values()]
    made.nodes = [node for field in fields for node, _, _ in field]
    made.alternatives = <Alternative *>PyMem_Malloc(max(1, len(made.nodes)) * sizeof(Alternative))
    if made.alternatives == NULL:
        raise MemoryError
    for number, field in enumerate(fields):
        for node, kept, asks in field:
            one = &made.alternatives[made.count]
            one.node, one.field, one.kept, one.asks = <PyObject *>node, number, kept, asks
            made.count += 1
        for at in range(made.count - len(field), made.count):
            made.alternatives[at].next_field = made.count
    made.slots, made.arity = len((<_Maker>maker).shared), len(names)
    made.names = names_of(expressions)
    return made
