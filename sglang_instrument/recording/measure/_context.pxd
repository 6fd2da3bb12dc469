# What other compiled modules may use of _context.pyx.

from sglang_instrument.recording.measure._tasks cimport Task

cdef enum LiesInGenerator:  # whether a block lies in a generator; asking the running frame takes long
    NO
    YES
    ASK
    ASK_IF_NOT_CURRENT

cdef class Context:
    cdef public object worker
    cdef public object step
    cdef public object validate
    cdef public object request_id
    cdef public object turn
    cdef public object role
    cdef public object scope
    cdef public object agent
    cdef public object parent_request
    cdef object fields  # those of them that records show: {"request_id": ..., ...}, made on first use
    cdef dict ids(self)
    cdef public Task bound_by_task
    cdef public object shared_json
    cdef public Context outer  # the context that was bound before
    cdef public bint ended  # whether its block has ended
    cdef public bint opened  # whether its block is one of the scope's open blocks
    cdef public bint left  # whether another task has left its block

cdef class Bound:
    cdef readonly Context context
    cdef int undo(self, LiesInGenerator where) except -1

cdef Context current_context()
cpdef Context skip_left(Context context)  # unsets what other tasks have left; returns the current context
cdef Bound bind_on(dict changes, bint root)  # binds all, or raises and binds nothing
