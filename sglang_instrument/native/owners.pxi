# How an asyncio task is known: beside its attributes, of which it has none as a rule.
#
# As an attribute a Task would take a dictionary and its keys, memory that is cold when it is asked for, and a
# search through three types. But an asyncio task has a place for the dictionary of its attributes; there we put
# one that is empty, takes attributes as any other, and knows the Task, which knows nothing of it: what somebody
# sets there may lead anywhere. Where a dictionary is there already, or the place is hidden, it is an attribute.

cdef extern from *:
    """
    static PyObject **sglang_instrument_place(PyObject *owner) {
        Py_ssize_t offset = Py_TYPE(owner)->tp_dictoffset;
        return offset > 0 ? (PyObject **)((char *)owner + offset) : NULL;
    }
    static int sglang_instrument_is_exactly(PyObject *one, PyObject *type) {
        return Py_TYPE(one) == (PyTypeObject *)type;
    }
    """
    PyObject** place_in "sglang_instrument_place"(PyObject*) noexcept
    bint is_exactly "sglang_instrument_is_exactly"(PyObject*, object) noexcept
    void PyObject_GC_UnTrack(PyObject*) noexcept
    void Py_INCREF(PyObject*) noexcept


@cython.final
@cython.no_gc  # a dictionary is the collector's as soon as there is something in it; a Task leads nowhere
cdef class Attributes(dict):
    """The attributes of an asyncio task, and what it is known as."""

    cdef Task task


cdef inline Task task_known_of(object owner):
    cdef PyObject **place = place_in(<PyObject*>owner)
    if place != NULL:
        if place[0] == NULL:
            return None
        if is_exactly(place[0], Attributes):
            return (<Attributes>place[0]).task
    try:
        known = getattr(owner, "_sglang_instrument", None)
    except Exception:  # a task of somebody's own, which may raise anything
        return None
    return <Task>known if type(known) is Task else None


cdef int know_task(object owner, Task task) except -1:
    """Let an asyncio task be known.

    Raises:
        AttributeError: It has no room for that.
    """
    cdef PyObject **place = place_in(<PyObject*>owner)
    cdef Attributes made
    if place != NULL and place[0] == NULL:
        made = Attributes.__new__(Attributes)  # may run the collector, and so anything
        if place[0] == NULL:
            made.task = task
            PyObject_GC_UnTrack(<PyObject*>made)  # as an empty dict is
            Py_INCREF(<PyObject*>made)
            place[0] = <PyObject*>made
            return 0
    owner._sglang_instrument = task
    return 0
