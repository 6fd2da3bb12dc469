# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, embedsignature=False, binding=False, nonecheck=True
"""recording/measure/context.py, compiled: the bound ids; contexts of a request and its turns are made in C."""

cimport cython
from cpython.contextvars cimport PyContextVar_Get, PyContextVar_Set
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.mem cimport PyObject_Free, PyObject_Malloc
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from cpython.ref cimport Py_XDECREF
from cpython.unicode cimport PyUnicode_GET_LENGTH

from contextvars import ContextVar

from sglang_instrument.recording.measure._tasks cimport Task, current_task, thread_task_of

include "sglang_instrument/native/module.pxi"

cdef extern from *:
    """
    #define sglang_instrument_token_bytes() ((size_t)PyContextToken_Type.tp_basicsize + 2 * sizeof(void *))
    """
    const size_t TOKEN_BYTES "sglang_instrument_token_bytes()"

cdef extern from *:
    """
    /* Whether the Python code that calls, which left a `with` block, is that of a generator. */
    static int sglang_instrument_in_generator(void) {
        PyFrameObject *frame = PyEval_GetFrame();
        PyCodeObject *code;
        int flags;
        if (frame == NULL) return 0;
        code = PyFrame_GetCode(frame);
        flags = code->co_flags;
        Py_DECREF(code);
        return (flags & (CO_GENERATOR | CO_ASYNC_GENERATOR)) != 0;
    }
    """
    bint in_generator "sglang_instrument_in_generator"() noexcept

# connect() sets these, from recording/measure/context.py.
cdef object to_identifier = None
cdef object to_integer = None
cdef object new_place = None
cdef object new_agent = None
cdef object with_agent = None
cdef object open_within = None
cdef object tell_began = None
cdef object tell_ended = None
cdef Py_ssize_t LONGEST_ID = 0


@cython.no_gc  # its values were reduced; a scope and a task refer to no context
cdef class Context:
    """What is bound; see recording/measure/context.py."""

    def __init__(
        self, worker=None, step=None, validate=False, request_id=None, turn=None, role=None, scope=None,
        extra=None, agent=None, parent_request=None, Task bound_by_task=None, shared_json=None,
    ):
        self.worker, self.step, self.validate, self.role, self.scope = worker, step, validate, role, scope
        self.request_id, self.turn, self.fields = request_id, turn, extra
        self.agent, self.parent_request = agent, parent_request
        self.bound_by_task, self.shared_json = bound_by_task, shared_json

    cdef dict ids(self):
        if self.fields is None and (
            self.request_id is not None or self.turn is not None
            or self.agent is not None or self.parent_request is not None
        ):
            self.fields = {}
            if self.request_id is not None:
                self.fields["request_id"] = self.request_id
            if self.turn is not None:
                self.fields["turn"] = self.turn
            if self.agent is not None or self.parent_request is not None:
                self.fields = with_agent(self.fields, self.request_id, self.agent, self.parent_request)
        return self.fields

    @property
    def extra(self):
        """The bound ids, as a dict; None without any."""
        return self.ids()

    @extra.setter
    def extra(self, value):
        self.fields = value

    def __reduce__(self):
        from sglang_instrument.recording.measure.context import Context as public  # other processes may be pure

        known = (self.worker, self.step, self.validate, self.request_id, self.turn, self.role)
        return public, (*known, None, self.extra, self.agent, self.parent_request)


cdef Context NOTHING_BOUND = Context()
cdef object variable = ContextVar("sglang_instrument", default=NOTHING_BOUND)
UNBOUND, CURRENT = NOTHING_BOUND, variable


@cython.no_gc  # contexts and scopes refer to no Bound
@cython.freelist(64)
cdef class Bound:
    """A context that was set; see recording/measure/context.py."""

    cdef int undo(self, LiesInGenerator where) except -1:
        cdef Context context = self.context
        cdef Context current = current_context()
        try:
            if context.ended or context.outer is None:
                pass
            elif current is context and (where == NO or where == ASK_IF_NOT_CURRENT):
                put(context.outer)
            else:
                unset(context, current, where == YES or (where != NO and in_generator()))
        finally:
            end_block(context)
        return 0

    def pop(self, bint in_generator=False):
        """Unset the context, and count its block as ended; see recording/measure/context.py."""
        self.undo(YES if in_generator else NO)


cdef int unset(Context context, Context current, bint in_generator) except -1:
    cdef bint is_here = encloses(context, current)
    if not is_here or (in_generator and context.bound_by_task is not running_task(context)):
        context.left = True  # the task that bound it unsets it when it binds or records again
    if current is not context and in_generator:
        take_out(context, current)
    elif is_here:
        put(context.outer)
        end_blocks_within(context, current)
    return 0


cdef int take_out(Context context, Context current) except -1:
    """Take a context out from those that enclose the current one."""
    while current.outer is not None and current.outer is not context:
        current = current.outer
    if current.outer is context:
        current.outer = context.outer
    return 0


cpdef Context skip_left(Context context):
    """Unset the contexts that this task has bound and other tasks have left; return the current one."""
    cdef Context current = context
    while current is not None and current.left and current.bound_by_task is running_task(context):
        current = current.outer
    if current is None:
        current = NOTHING_BOUND
    if current is not context and current_context() is context:
        put(current)
    return current


cdef Task running_task(Context inherited):
    cdef Task task = current_task(inherited.bound_by_task)
    return thread_task_of(PyThread_get_thread_ident()) if task is None else task


cdef bint encloses(Context context, Context current) noexcept:
    """Return whether `context` is the current one, or encloses it."""
    while current is not None and current is not context:
        current = current.outer
    return current is not None


cdef int end_blocks_within(Context context, Context current) except -1:
    """End the blocks inside a context that did not end; `current` is the innermost one."""
    while current is not context:
        if not current.ended:
            end_block(current)
        current = current.outer
    return 0


cdef int skip_ended(Context context) except -1:
    """Drop ended contexts that enclose a context: else tasks that spawn one another make an endless chain."""
    while context.outer is not None and context.outer.ended:
        context.outer = context.outer.outer
    return 0


cdef int put(Context context) except -1:
    """Set a context, or raise MemoryError: without memory for a token, CPython itself may crash."""
    cdef void *asked = PyObject_Malloc(TOKEN_BYTES)
    if asked == NULL:
        raise MemoryError
    PyObject_Free(asked)
    PyContextVar_Set(variable, context)
    return 0


cdef Context current_context():
    cdef PyObject *bound = NULL
    PyContextVar_Get(variable, NULL, &bound)  # it has a default
    context = <object>bound
    Py_XDECREF(bound)
    return <Context?>context


cdef inline bint is_small(object value):
    """Return whether this is a plain int of at most 64 bits, not a subclass."""
    cdef int overflow = 0
    if type(value) is not int:
        return False
    PyLong_AsLongLongAndOverflow(value, &overflow)
    return overflow == 0


cdef Context with_ids(Context before, object request_id, object turn):
    cdef Context made = Context.__new__(Context)
    made.worker, made.step, made.validate = before.worker, before.step, before.validate
    made.role, made.scope = before.role, before.scope
    made.request_id, made.turn = before.request_id, before.turn
    made.agent, made.parent_request = before.agent, before.parent_request
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
        if "agent" in changes or "parent_request" in changes:
            made.agent, made.parent_request = new_agent(before, changes, made.request_id)
            made.fields = None
        made.step, made.worker, made.role, made.validate, made.scope = new_place(before, changes)
    return made


cdef Bound bind_on(dict changes, bint root):
    """Bind on top of the current context, or, with `root`, of an empty one."""
    cdef Context current = current_context()
    cdef Context outer = skip_left(current) if current.left else current
    cdef Context before = NOTHING_BOUND if root else outer
    cdef Context context = derived(before, changes)
    cdef Bound bound = Bound.__new__(Bound)
    cdef Task task = current_task(before.bound_by_task)
    context.bound_by_task = thread_task_of(PyThread_get_thread_ident()) if task is None else task
    skip_ended(outer)
    bound.context, context.outer = context, outer
    put(context)
    if context.scope is None:
        return bound
    try:
        if changes.get("step") is not None:
            open_block(context)
        elif context.scope is not before.scope and before.scope is not None:
            open_within(context, context.scope, before.scope)
    except BaseException:
        bound.undo(NO)
        raise
    return bound


def push(changes, root=False):
    """Bind `changes` on top of the current context; see recording/measure/context.py."""
    return bind_on(changes if type(changes) is dict else dict(changes), root)


def derive(Context before not None, changes):
    """Return `before` with `changes`; see recording/measure/context.py."""
    return derived(before, changes if type(changes) is dict else dict(changes))


# No other thread, and no exception from outside, comes between the lines that count: C code holds the GIL, and an
# attribute of a Scope is read and set in C.


cdef int open_block(Context context) except -1:
    """Count one more block of the step as open."""
    scope = context.scope
    scope.open += 1
    context.opened = True
    scope.ended = False
    if scope.open == 1:
        tell_began(scope)
    return 0


cdef int end_block(Context context) except -1:
    """Note that a block has ended; the last open block of a step ends the step."""
    context.ended = True
    if not context.opened:
        return 0
    context.opened = False
    scope = context.scope
    scope.open -= 1
    if scope.open <= 0 and (scope.within is None or scope.within.open <= 0):
        scope.ended = True
        tell_ended(scope)
    return 0


def take_ended(scope):
    """Return whether the step has ended since the last call, and is not open again."""
    if not scope.ended or scope.open > 0:
        return False
    scope.ended = False
    return True


def connect(dict pure):
    """Take what this module uses of recording/measure/context.py."""
    global to_identifier, to_integer, new_place, new_agent, with_agent, open_within, tell_began, tell_ended
    global LONGEST_ID
    to_identifier, to_integer, new_place = pure["identifier"], pure["integer"], pure["_new_place"]
    new_agent, with_agent = pure["new_agent"], pure["with_agent"]
    open_within, tell_began, tell_ended = pure["open_within"], pure["_tell_began"], pure["_tell_all_ended"]
    LONGEST_ID = pure["LONGEST_ID"]
