# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, embedsignature=False, binding=False, nonecheck=False
"""recording/measure/waiting.py, compiled: count how long a coroutine is suspended.

`Waits` runs between two coroutines. Its functions there are C code without exception handling, so tracebacks,
cancellation and execution order stay the same: a Cython function that handles exceptions would add its own
entry to the traceback.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF

from types import CoroutineType

from sglang_instrument.recording.measure._tasks cimport Task, current_task, now_ns

include "sglang_instrument/native/module.pxi"

cdef object reraise_if_programs_own = None  # of recording/safety/guard.py

cdef extern from "Python.h":
    void PyErr_SetNone(PyObject*) noexcept
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT
    ctypedef PySendResult (*sendfunc)(PyObject*, PyObject*, PyObject**) noexcept
    ctypedef PyObject* (*iternextfunc)(PyObject*) noexcept
    ctypedef PyObject* (*fastcall)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*) noexcept
    ctypedef PyObject* (*unaryfunc)(PyObject*) noexcept
    ctypedef struct PyAsyncMethods:
        unaryfunc am_await
        sendfunc am_send
    ctypedef object (*descrgetfunc)(object, object, object)
    ctypedef struct PyTypeObject:
        descrgetfunc tp_descr_get
        const char* tp_name
        PyAsyncMethods* tp_as_async
        iternextfunc tp_iternext
    ctypedef struct PyMethodDef:
        pass
    PyTypeObject* Py_TYPE(object)
    PyObject* _PyType_Lookup(PyTypeObject*, object) noexcept  # a borrowed reference
    # Declared noexcept: their exceptions pass through unchanged.
    PySendResult PyIter_Send(PyObject*, PyObject*, PyObject**) noexcept
    PyObject* PyObject_Vectorcall(PyObject*, PyObject* const*, size_t, PyObject*) noexcept

cdef extern from *:
    """
    /* StopIteration(value), also where value is a tuple or an exception itself. */
    static void sglang_instrument_stop(PyObject *value) {
        if (value == Py_None) return;  /* no exception at all means None, too */
        PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, value);
        if (stop != NULL) { PyErr_SetObject(PyExc_StopIteration, stop); Py_DECREF(stop); }
    }
    static PyObject *sglang_instrument_attribute(PyObject *owner, const char *name) {
        return PyObject_GetAttrString(owner, name);
    }
    /* Lets Cython take a PyObject* as an object: NULL if, and only if, an exception is set. */
    #define sglang_instrument_object(result) (result)
    static PyMethodDef sglang_instrument_throw = {"throw", NULL, METH_FASTCALL | METH_KEYWORDS, NULL};
    static PyMethodDef sglang_instrument_close = {"close", NULL, METH_FASTCALL | METH_KEYWORDS, NULL};
    static PyMethodDef sglang_instrument_send = {"send", NULL, METH_FASTCALL | METH_KEYWORDS, NULL};
    static PyObject *sglang_instrument_bound(PyMethodDef *method, void *function, PyObject *self) {
        method->ml_meth = (PyCFunction)function;
        return PyCFunction_NewEx(method, self, NULL);
    }
    """
    void stop_iteration "sglang_instrument_stop"(PyObject*) noexcept
    PyObject* attribute_of "sglang_instrument_attribute"(PyObject*, const char*) noexcept
    PyMethodDef throw_method "sglang_instrument_throw"
    PyMethodDef close_method "sglang_instrument_close"
    PyMethodDef send_method "sglang_instrument_send"
    object as_object "sglang_instrument_object"(PyObject*)
    object bound_method "sglang_instrument_bound"(PyMethodDef*, void*, object)


cdef inline void suspended(Task task) noexcept:
    """Note that the task is suspended; of nested calls the innermost comes first, and counts."""
    if task is not None and task.suspended_at == 0:
        task.suspended_at = now_ns()


cdef inline void resumed(Task task) noexcept:
    """Note that the task runs again; of nested calls the outermost comes first, and counts."""
    if task is not None and task.suspended_at != 0:
        task.waited += now_ns() - task.suspended_at
        task.suspended_at = 0


cdef class Waits:
    """The steps of what is awaited, with each suspension and each resumption counted."""

    cdef Task task
    cdef object steps
    cdef bint begun

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):  # for calls by name; the interpreter calls `next_step`, set below
        return next_or_stop(<PyObject*>self)

    @property
    def steps(self):
        """The awaited coroutine, or the iterator of another awaitable."""
        return self.steps

    @property
    def send(self):
        """Send a value into what is awaited; asyncio sends none, other loops may."""
        return bound_method(&send_method, <void*>&send_call, self)

    @property
    def throw(self):
        """Throw into what is awaited, as a cancellation does; missing if the awaited iterator has no `throw`."""
        self.steps.throw
        return bound_method(&throw_method, <void*>&throw_call, self)

    @property
    def close(self):
        """End what is awaited, as for a coroutine that is never finished; missing if the iterator has no `close`."""
        self.steps.close
        return bound_method(&close_method, <void*>&close_call, self)


cdef PySendResult send_step(PyObject *waits, PyObject *value, PyObject **result) noexcept:
    """Do one step of what is awaited: am_send."""
    cdef Waits self = <Waits>waits
    cdef Task task = self.task
    cdef PySendResult outcome
    if self.begun:
        resumed(task)
    self.begun = True  # the first step resumes nothing
    outcome = PyIter_Send(<PyObject*>self.steps, value, result)
    if outcome == PYGEN_NEXT:
        suspended(task)
    return outcome


cdef PyObject* next_step(PyObject *waits) noexcept:
    """Do one step as an iterator does it: tp_iternext."""
    cdef PyObject *result = NULL
    cdef PySendResult outcome = send_step(waits, <PyObject*>None, &result)
    return yielded(outcome, result)


cdef object next_or_stop(PyObject *waits):
    return as_object(send_call(waits, NULL, 0, NULL))


cdef PyObject* yielded(PySendResult outcome, PyObject *result) noexcept:
    if outcome == PYGEN_RETURN:
        stop_iteration(result)
        Py_XDECREF(result)
        return NULL
    return result


cdef PyObject* send_call(PyObject *waits, PyObject * const *args, Py_ssize_t n, PyObject *names) noexcept:
    cdef PyObject *result = NULL
    cdef PyObject *value = args[0] if n == 1 else <PyObject*>None
    cdef PySendResult outcome = send_step(waits, value, &result)
    if outcome == PYGEN_RETURN and result == <PyObject*>None:
        Py_XDECREF(result)
        PyErr_SetNone(<PyObject*>StopIteration)
        return NULL
    return yielded(outcome, result)


cdef PyObject* throw_call(PyObject *waits, PyObject * const *args, Py_ssize_t n, PyObject *names) noexcept:
    cdef Waits self = <Waits>waits
    cdef Task task = self.task
    cdef PyObject *result
    resumed(task)
    result = call_method(<PyObject*>self.steps, "throw", args, n, names)
    if result != NULL:  # the coroutine caught the exception, and awaits something else
        suspended(task)
    return result


cdef PyObject* close_call(PyObject *waits, PyObject * const *args, Py_ssize_t n, PyObject *names) noexcept:
    cdef Waits self = <Waits>waits
    resumed(self.task)
    return call_method(<PyObject*>self.steps, "close", args, n, names)


cdef PyObject* call_method(
    PyObject *owner, const char *name, PyObject * const *args, Py_ssize_t n, PyObject *names
) noexcept:
    cdef PyObject *method = attribute_of(owner, name)
    cdef PyObject *result
    if method == NULL:
        return NULL
    result = PyObject_Vectorcall(method, args, n, names)
    Py_XDECREF(method)
    return result


(<PyTypeObject*>Waits).tp_as_async.am_send = send_step
(<PyTypeObject*>Waits).tp_iternext = next_step

cdef object MARK = "sglang_instrument counts the awaits of this code"


cdef object waits_of(Task task, object awaitable):
    cdef Waits made
    try:
        made = Waits.__new__(Waits)
    except MemoryError:  # the await is not counted
        return awaitable
    made.task = task
    made.steps = awaitable if type(awaitable) is CoroutineType else as_object(slot_await(awaitable)(<PyObject*>awaitable))
    return made


cdef inline unaryfunc slot_await(object awaitable) noexcept:
    """Return what `await` calls: of the class, whatever the object itself stores. NULL: `await` raises, or iterates."""
    cdef PyAsyncMethods *methods = Py_TYPE(awaitable).tp_as_async
    return NULL if methods == NULL else methods.am_await


cdef Task counts_await(object awaitable):
    """Return the running task if this await is to be counted, else None."""
    cdef Task task = current_task(None)
    if task is None or not task.counted_by:
        return None  # no open span of this task counts waiting
    if type(awaitable) is CoroutineType:
        constants = <tuple>awaitable.cr_code.co_consts
        last = constants[len(constants) - 1] if constants else None
        if type(last) is str and last == MARK or awaitable.cr_await is not None:
            return None
    elif slot_await(awaitable) == NULL:  # an old-style coroutine, or not awaitable: `await` itself raises
        return None
    return task


def waited(awaitable):
    """Return what to await instead of `awaitable`, so that the running task's waiting is counted."""
    cdef Task task
    try:
        task = counts_await(awaitable)
    except BaseException:  # its metaclass raises, or memory has run out
        reraise_if_programs_own()
        return awaitable
    return awaitable if task is None else waits_of(task, awaitable)


def waits(Task task not None, awaitable):
    """Return the steps of `awaitable`, counted; the first step is no resumption."""
    return waits_of(task, awaitable)


def special_method(owner, str name):
    """Return a special method as Python binds it: from the class, whatever the object itself stores."""
    cdef PyObject *entry = _PyType_Lookup(Py_TYPE(owner), name)
    cdef descrgetfunc bind
    if entry == NULL or entry == <PyObject*>None:
        return None
    attribute = <object>entry
    bind = Py_TYPE(attribute).tp_descr_get
    return attribute if bind == NULL else bind(attribute, owner, type(owner))


def connect(dict pure):
    """Take what this module uses of recording/measure/waiting.py."""
    global reraise_if_programs_own
    reraise_if_programs_own = pure["reraise_if_programs_own"]
