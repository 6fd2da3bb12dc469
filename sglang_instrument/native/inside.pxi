# What finished within a region: the spans that it reads, and the fields of those.

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
