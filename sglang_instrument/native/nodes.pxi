# What a path has come to, from the reader's arguments on.

@cython.no_gc
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


@cython.no_gc
cdef class Local(Node):
    cdef Py_ssize_t index

    cdef object find(self, Reading *reading):
        return (<tuple>reading.values)[self.index]


@cython.no_gc
cdef class Whole(Node):
    """A local that is read as it is: it may have no value."""

    cdef Node of

    cdef object find(self, Reading *reading):
        found = get(self.of, reading)
        return MISSING if found is UNBOUND else found


@cython.no_gc
cdef class Given(Node):
    """What the function returned, or the item that a generator gave."""

    cdef object find(self, Reading *reading):
        run = <object>reading.run
        return <object>reading.value if run is None else getattr(run, "value", MISSING)


@cython.no_gc
cdef class Bound(Node):
    cdef str name

    cdef object find(self, Reading *reading):
        return bound_to(self.name)


@cython.no_gc
cdef class Constant(Node):
    cdef object value

    cdef object find(self, Reading *reading):
        return self.value


@cython.no_gc
cdef class Unknown(Node):
    """A name that is none of the reader's."""

    cdef object find(self, Reading *reading):
        return MISSING


@cython.no_gc
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


@cython.no_gc
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


@cython.no_gc
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


@cython.no_gc
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


@cython.no_gc
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
