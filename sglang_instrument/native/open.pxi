# The watched spans that are open: each knows its place, so that nothing is hashed when one begins or ends.

cdef enum:
    NO_PLACE = 0  # places count from 1

cdef struct Place:
    PyObject *span  # owned; NULL of one that is free
    Py_ssize_t next_free


@cython.final
@cython.no_gc  # spans lead nowhere
cdef class Open:
    """The open spans by id: of a dict, what is asked of OPEN."""

    cdef Place *places
    cdef Py_ssize_t room, used, count
    cdef Py_ssize_t free  # a place that was left

    def __dealloc__(self):
        self.clear()
        PyMem_Free(self.places)

    def __len__(self):
        return self.count

    def items(self):
        """Return (id, span) of each, the oldest first as a rule."""
        return [(id(span), span) for span in self.values()]

    def values(self):
        """Return the open spans."""
        cdef list found = []
        cdef Py_ssize_t at = 0
        while at < self.used:  # an append may run anything: spans come and go
            if self.places[at].span != NULL:
                found.append(<object>self.places[at].span)
            at += 1
        return found

    def clear(self):
        """Know none of them any more."""
        cdef list held = self.values()  # let go of when nothing of this is looked at any more
        cdef Py_ssize_t at
        cdef PyObject *span
        for at in range(self.used):
            span, self.places[at].span = self.places[at].span, NULL
            Py_XDECREF(span)  # it is in `held`
        self.used = self.count = 0
        self.free = NO_PLACE

    cdef Py_ssize_t take(self, Span span) except -1:
        """Keep a span; return its place."""
        cdef Py_ssize_t place = self.free
        if place != NO_PLACE:
            self.free = self.places[place - 1].next_free
        else:
            if self.used == self.room:
                self.grow()
            self.used += 1
            place = self.used
        Py_INCREF(<PyObject*>span)
        self.places[place - 1].span = <PyObject*>span
        self.count += 1
        return place

    cdef int grow(self) except -1:
        cdef Py_ssize_t room = 2 * self.room + 64
        grown = <Place *>PyMem_Realloc(self.places, room * sizeof(Place))
        if grown == NULL:
            raise MemoryError
        self.places, self.room = grown, room
        return 0

    cdef bint has(self, Span span, Py_ssize_t place) noexcept:
        return NO_PLACE < place <= self.used and self.places[place - 1].span == <PyObject*>span

    cdef int let_go(self, Span span, Py_ssize_t place) except -1:
        """Let go of a span that is kept here; the caller holds it."""
        self.places[place - 1].span = NULL
        self.count -= 1
        if self.count == 0:
            self.used, self.free = 0, NO_PLACE
        else:
            self.places[place - 1].next_free, self.free = self.free, place
        Py_XDECREF(<PyObject*>span)
        return 0


cdef Open OPEN = Open.__new__(Open)
open_spans = OPEN


cdef int note_open(Span opened, Py_ssize_t *place) except -1:
    if OPEN.has(opened, place[0]):
        return 0  # it was entered twice
    if OPEN.count == 0:
        tell(first_opened)
    place[0] = OPEN.take(opened)
    return 0


cdef int note_closed(Span closed, Py_ssize_t *place) except -1:
    if OPEN.has(closed, place[0]):
        OPEN.let_go(closed, place[0])
    place[0] = NO_PLACE
    if OPEN.count == 0:
        tell(all_closed)
    return 0


cdef int tell(object who) except -1:
    if who is not int:
        try:
            who()
        except BaseException:
            swallow("watching a span")
    return 0
