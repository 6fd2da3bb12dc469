# `span` and `event`, which users call: they raise nothing even without memory for the call.
#
# Cython's entry point of a function with keywords makes a dict before the first line of the function, outside of any
# `try`. So both get an entry point of ours, in the vectorcall slot, which handles a MemoryError there. Without it
# tests/recording/contract/test_out_of_memory.py fails: the program would see the MemoryError.

@cython.binding(True)  # it has a signature, and gets the docstring of recording/measure/spans.py
def span(event, /, *, phase=None, **extra):
    """Time a block."""
    try:
        return make_span(event, phase, extra)
    except BaseException:
        drop_record("beginning a span")
        return LOST


cdef object make_span(object event, object phase, dict extra):
    cdef Span made
    cdef PyObject *known = NULL
    if type(event) is not str:
        event = reduce_one(event)
    if type(event) is str:  # a list, for example, cannot be a name
        known = PyDict_GetItemWithError(kinds, event)
        kind = learn_kind(event) if known is NULL else <object>known
    else:
        kind = Span
    if phase is not None:
        phase = to_text(phase)
        kind = kind_of_phase(event, phase)
    made = new_span(kind)
    made.begin(event, reduce_extra(extra) if extra else None, phase, NOT_COUNTED)
    return made


@cython.binding(True)
def event(name, /, *, phase=None, **extra):
    """Record an instant event."""
    cdef Span point
    try:
        point = Span.__new__(Span)
        known = name if type(name) is str else reduce_one(name)
        if phase is not None:
            phase = to_text(phase)
        point.begin(known, reduce_extra(extra) if extra else None, phase, NOT_COUNTED)
        record_point(point)
    except BaseException:
        drop_record("recording an event")


cdef extern from *:
    """
    static vectorcallfunc *sglang_instrument_call_of(PyObject *function) {
        return (vectorcallfunc *)((char *)function + Py_TYPE(function)->tp_vectorcall_offset);
    }
    """
    vectorcallfunc* call_of "sglang_instrument_call_of"(object) noexcept

# Cython's own entry points of these two.
cdef vectorcallfunc call_of_span = call_of(span)[0]
cdef vectorcallfunc call_of_event = call_of(event)[0]


# Called by way of a pointer, a function that raises returns NULL, as a vectorcall has to.
ctypedef PyObject* (*from_event)(PyObject *event) noexcept
cdef from_event call_plain_span = <from_event>plain_span


cdef PyObject* plain_span(PyObject *event) except NULL:
    """Return `span(event)`: without keywords, it needs no dictionary of them, which is a tenth of its time."""
    cdef object made
    try:
        made = make_span(<object>event, None, None)
    except BaseException:
        drop_record("beginning a span")
        made = LOST
    Py_INCREF(<PyObject*>made)
    return <PyObject*>made


cdef PyObject* span_or_lost(PyObject *called, PyObject * const *args, size_t flagged, PyObject *names) noexcept:
    cdef PyObject *made
    if names == NULL and PyVectorcall_NARGS(flagged) == 1:
        return call_plain_span(args[0])
    made = call_of_span(called, args, flagged, names)
    return instead_of_call("beginning a span", LOST) if made == NULL else made


cdef PyObject* event_or_none(PyObject *called, PyObject * const *args, size_t flagged, PyObject *names) noexcept:
    cdef PyObject *made = call_of_event(called, args, flagged, names)
    return instead_of_call("recording an event", None) if made == NULL else made


cdef PyObject* instead_of_call(str where, object instead) noexcept:
    if not PyErr_ExceptionMatches(MemoryError):
        return NULL  # the caller's own error, such as a wrong argument
    drop_record_pending(where)  # it re-raises only errors that a call cannot raise here
    Py_INCREF(<PyObject*>instead)
    return <PyObject*>instead


call_of(span)[0], call_of(event)[0] = span_or_lost, event_or_none
