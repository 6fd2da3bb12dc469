# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, embedsignature=False, binding=False, nonecheck=True
"""recording/measure/binding.py, compiled: no exception can come between binding ids and entering the block.

Python raises exceptions of signal handlers, and those of other threads, between instructions of Python code.
`with` calls `__enter__` and `__exit__` in C, and these are C: so a block is entered with its ids bound, or
not at all, and leaving it unbinds them.
"""

cimport cython

from sglang_instrument.recording.measure._context cimport ASK, ASK_IF_NOT_CURRENT, NO, Bound, Context, bind_on, current_context

include "sglang_instrument/native/module.pxi"

# connect() sets these, from recording/measure/binding.py.
cdef object log_swallowed_now = None


@cython.freelist(16)
cdef class Binding:
    """Binds `changes` while one of its blocks is open; see recording/measure/binding.py."""

    cdef readonly dict changes
    cdef Bound first  # usually the only one
    cdef dict others  # by id() of the context that was set

    def __init__(self, dict changes not None):
        self.changes = changes

    def __enter__(self):
        try:
            self.enter()
        except BaseException:
            log_swallowed("binding ids")
        return self

    def __exit__(self, error=None, value=None, trace=None):
        cdef Bound bound
        try:
            bound = self.taken()
            if bound is not None:
                bound.undo(ASK if error is GeneratorExit else ASK_IF_NOT_CURRENT)
        except BaseException:
            log_swallowed("unbinding ids")

    cdef int enter(self) except -1:
        cdef Bound bound = bind_on(self.changes, False)
        if self.first is None:
            self.first = bound
            return 0
        try:
            if self.others is None:
                self.others = {}
            self.others[<size_t><void*>bound.context] = bound
        except BaseException:
            bound.undo(NO)
            raise
        return 0

    cdef Bound taken(self):
        """Return the Bound of the block that ends now, and forget it; None if it was not bound."""
        cdef Context current = current_context()
        cdef Bound bound = self.first
        if self.others and (bound is None or bound.context is not current):
            bound = self.others.pop(<size_t><void*>current, None)
            if bound is not None:
                return bound
            if self.first is None:  # another task than the one that entered the block leaves it
                return self.others.popitem()[1]
        bound, self.first = self.first, None
        return bound


cdef int log_swallowed(str where) except -1:
    try:
        log_swallowed_now(where)
    except MemoryError:
        pass
    return 0


@cython.binding(True)  # it has a signature, and gets the docstring of recording/measure/binding.py
def bind(
    *, step=None, worker=None, request_id=None, turn=None, validate=None, role=None, agent=None,
    parent_request=None,
):
    """Bind ids for a block."""
    cdef Binding made
    try:
        made = Binding.__new__(Binding)
        made.changes = {}
        if request_id is not None:
            made.changes["request_id"] = request_id
        if turn is not None:
            made.changes["turn"] = turn
        if step is not None:
            made.changes["step"] = step
        if worker is not None:
            made.changes["worker"] = worker
        if validate is not None:
            made.changes["validate"] = validate
        if role is not None:
            made.changes["role"] = role
        if agent is not None:
            made.changes["agent"] = agent
        if parent_request is not None:
            made.changes["parent_request"] = parent_request
        return made
    except BaseException:
        log_swallowed("binding ids")
        return NOTHING


cdef Binding NOTHING = Binding({})


def connect(dict pure):
    """Take what this module uses of recording/measure/binding.py."""
    global log_swallowed_now
    log_swallowed_now = pure["log_swallowed_now"]
