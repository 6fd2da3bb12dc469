# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, embedsignature=False, binding=False, nonecheck=True
"""What is bound, as `recording.context` says it: contexts of a request and its turns are made in C."""

cimport cython
from cpython.contextvars cimport PyContextVar_Get, PyContextVar_Reset, PyContextVar_Set
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from cpython.ref cimport Py_XDECREF
from cpython.unicode cimport PyUnicode_GET_LENGTH

from sglang_instrument.native.slabs cimport lie_in_slabs
from sglang_instrument.native.spans cimport Task, current_task, thread_task_of

include "stamp.pxi"

# Of `recording.context`, which hands them over.
cdef object CURRENT = None
cdef object to_identifier = None
cdef object to_integer = None
cdef object new_place = None
cdef object open_scope = None
cdef object close_scope = None
cdef Py_ssize_t LONGEST_ID = 0


@cython.no_gc  # what it holds was reduced; a scope and a task lead to no context
cdef class Context:
    """What is bound; see recording/context.py."""

    def __init__(
        self, worker=None, step=None, validate=False, request_id=None, turn=None, role=None, scope=None,
        extra=None, Task bound_in=None, part=None,
    ):
        self.worker, self.step, self.validate, self.role, self.scope = worker, step, validate, role, scope
        self.request_id, self.turn, self.fields = request_id, turn, extra
        self.bound_in, self.part = bound_in, part

    cdef dict ids(self):
        if self.fields is None and (self.request_id is not None or self.turn is not None):
            self.fields = {}
            if self.request_id is not None:
                self.fields["request_id"] = self.request_id
            if self.turn is not None:
                self.fields["turn"] = self.turn
        return self.fields

    @property
    def extra(self):
        """The bound ids, as a dict; None without any."""
        return self.ids()

    @extra.setter
    def extra(self, value):
        self.fields = value

    def __reduce__(self):
        from sglang_instrument.recording.context import Context as public  # it may travel to where this is pure

        known = (self.worker, self.step, self.validate, self.request_id, self.turn, self.role)
        return public, (*known, None, self.extra)


@cython.no_gc  # it lives in the span or the `bind` of its block
@cython.freelist(64)
cdef class Bound:
    """A context that was set, and how to get back."""

    cdef int undo(self) except -1:
        token, self.token = self.token, None
        if token is None:
            return 0
        try:
            PyContextVar_Reset(CURRENT, token)
        except ValueError:  # the block was entered in another task: there is nothing to undo in this one
            pass
        if self.opened is not None:
            close_scope(self.opened)
        return 0

    def pop(self):
        """Unset the context; the step of a block that bound it ends here."""
        self.undo()


cdef Context current_context():
    cdef PyObject *bound = NULL
    PyContextVar_Get(CURRENT, NULL, &bound)  # it has a default
    context = <object>bound
    Py_XDECREF(bound)
    return <Context?>context


cdef inline bint is_small(object value):
    """Whether this is an integer of 64 bits, and of no class of somebody's own."""
    cdef int overflow = 0
    if type(value) is not int:
        return False
    PyLong_AsLongLongAndOverflow(value, &overflow)
    return overflow == 0


cdef Context with_ids(Context before, object request_id, object turn):
    cdef Context made = Context.__new__(Context)
    made.worker, made.step, made.validate = before.worker, before.step, before.validate
    made.role, made.scope, made.inside = before.role, before.scope, before.inside
    made.request_id, made.turn = before.request_id, before.turn
    if request_id is None and turn is None:
        made.fields = before.fields
        return made
    if request_id is not None:
        if type(request_id) is not str or PyUnicode_GET_LENGTH(request_id) > LONGEST_ID:
            request_id = to_identifier(request_id)
        made.request_id = request_id
    if turn is not None:
        made.turn = turn if is_small(turn) else to_integer(turn)
    return made


cdef Context derived(Context before, dict changes):
    request_id, turn = changes.get("request_id"), changes.get("turn")
    cdef Context made = with_ids(before, request_id, turn)
    if len(changes) > (request_id is not None) + (turn is not None):
        made.step, made.worker, made.role, made.validate, made.scope = new_place(before, changes)
    return made


cdef Bound bound_to(Context before, Context context, object inside):
    """Return how to get back from a new context."""
    cdef Bound bound = Bound.__new__(Bound)
    cdef Task task = current_task(before.bound_in)
    context.bound_in = thread_task_of(PyThread_get_thread_ident()) if task is None else task
    bound.context = context
    if inside is not None:
        context.inside = inside
    return bound


cdef Bound bind_ids(Context before, object request_id, object turn, object inside):
    cdef Bound bound = bound_to(before, with_ids(before, request_id, turn), inside)
    bound.token = PyContextVar_Set(CURRENT, bound.context)
    return bound


cdef Bound bind_inside(Context before, object inside):
    cdef Bound bound = Bound.__new__(Bound)
    cdef Context context = with_ids(before, None, None)
    context.bound_in, context.inside = before.bound_in, inside
    context.base = before if before.base is None else before.base
    bound.context, bound.token = context, PyContextVar_Set(CURRENT, context)
    return bound


cdef Bound bind_on(Context before, dict changes, object inside):
    cdef Bound bound = bound_to(before, derived(before, changes), inside)
    if changes.get("step") is not None:
        bound.opened = bound.context.scope
        if bound.opened is not None:
            open_scope(bound.opened)
    bound.token = PyContextVar_Set(CURRENT, bound.context)
    return bound


def derive(Context before not None, changes):
    """Return `before` with `changes`; see recording/context.py."""
    return derived(before, changes if type(changes) is dict else dict(changes))


def push(changes):
    """Bind `changes` on top of what is bound; see recording/context.py."""
    return bind_on(current_context(), changes if type(changes) is dict else dict(changes), None)


def connect(*, current, identifier, integer, place, opening, closing, Py_ssize_t longest_id):
    """Take what belongs to recording/context.py."""
    global CURRENT, to_identifier, to_integer, new_place, open_scope, close_scope, LONGEST_ID
    CURRENT, to_identifier, to_integer, new_place = current, identifier, integer, place
    open_scope, close_scope, LONGEST_ID = opening, closing, longest_id


lie_in_slabs(Context)
