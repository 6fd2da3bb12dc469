# What other compiled modules may use of _tasks.pyx. `Task` has the fields of the class in recording/measure/tasks.py.

cimport cython
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

cdef enum:
    NOBODY = -1

cdef inline long long now_ns() noexcept:
    """Return what perf_counter_ns() does on Linux."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <long long>now.tv_sec * 1_000_000_000 + now.tv_nsec

@cython.no_gc
cdef class Task:
    cdef public unsigned long thread  # fields that each span reads come first, in one cache line
    cdef public size_t counted_by
    cdef object reference  # asyncio's weak reference to its task; see _owners.pxi
    cdef public long long number
    cdef public object first_logged_by
    cdef public long long waited
    cdef public long long suspended_at
    cdef public object loop
    cdef long long made_by  # spawned_by as a C number, without an int object; NOBODY if unknown

cdef bint some_task_runs() noexcept  # it may be one of another thread
cdef Task task_here(unsigned long thread)  # the known task of the only loop; None if that is another thread's
cdef Task current_task(object inherited)  # the asyncio task that runs now; None outside of any
cdef Task look_up_task(object inherited)  # the same, asking asyncio
cdef Task thread_task_of(unsigned long ident)
