# What other compiled modules may use of context.pyx.

from sglang_instrument.native.spans cimport Task

cdef class Context:
    cdef public object worker
    cdef public object step
    cdef public object validate
    cdef public object request_id
    cdef public object turn
    cdef public object role
    cdef public object scope
    cdef object fields  # {"request_id": ..., "turn": ...} as soon as somebody asks
    cdef dict ids(self)
    cdef public Task bound_in
    cdef public object part
    cdef object inside  # fields.Inside of the innermost open region that reads what ends within it
    cdef Context base  # of which this is a copy that differs in `inside` alone
    cdef public Context around  # what was bound before it
    cdef bint ended  # its block

cdef class Bound:
    cdef readonly Context context
    cdef object opened
    cdef int undo(self) except -1

cdef Context current_context()
cdef Context derived(Context before, dict changes)
# As below; of ids alone, which were not reduced yet, or of `inside` alone.
cdef Bound bind_ids(object request_id, object turn, object inside, Context root)
cdef Bound bind_inside(object inside)
# Binds on top of what is bound, or of `root`; what is given back unbinds it.
cdef Bound bind_on(dict changes, object inside, Context root)
