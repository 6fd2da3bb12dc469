# What the encoder's thread sleeps on: where little is recorded, most ticks find nothing, and need no GIL.

cdef extern from "pythread.h" nogil:
    ctypedef void *PyThread_type_lock
    ctypedef long long PY_TIMEOUT_T
    ctypedef enum PyLockStatus:
        PY_LOCK_FAILURE
        PY_LOCK_ACQUIRED
        PY_LOCK_INTR
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock lock)
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock lock, PY_TIMEOUT_T microseconds, bint by_signals)
    void PyThread_release_lock(PyThread_type_lock lock)

cdef extern from *:
    """
    /* Another thread may append meanwhile: what is read is how many there were a moment ago. */
    #define SIZE_OF_LIST(list) __atomic_load_n(&((PyVarObject *)(list))->ob_size, __ATOMIC_RELAXED)
    """
    Py_ssize_t SIZE_OF_LIST(PyObject *list) noexcept nogil


@cython.final
@cython.no_gc
cdef class Bell:
    """Wakes who waits for it, at once or at a tick; see recording/bell.py.

    The lock is held but for the moment between a ring and who wakes from it; `rung` says, under the GIL, that
    somebody let go of it.
    """

    cdef PyThread_type_lock lock
    cdef bint rung

    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError
        PyThread_acquire_lock_timed(self.lock, 0, False)

    def __dealloc__(self):
        if self.lock != NULL:
            self.ring()  # a lock that is held must not be freed
            PyThread_free_lock(self.lock)

    def ring(self):
        """Wake who waits, or who waits next."""
        if not self.rung:
            self.rung = True
            PyThread_release_lock(self.lock)

    def wait(self, double tick_sec, int most_ticks, list buffer not None):
        """Wait for a tick, or for several as long as nothing is in the buffer; return how many, 0 if it rang."""
        cdef PY_TIMEOUT_T microseconds = <PY_TIMEOUT_T>(tick_sec * 1e6)
        cdef PyObject *looked_at = <PyObject *>buffer  # which who calls keeps
        cdef PyLockStatus status = PY_LOCK_FAILURE
        cdef int ticks = 0
        with nogil:
            while ticks < most_ticks:
                status = PyThread_acquire_lock_timed(self.lock, microseconds, False)
                if status == PY_LOCK_ACQUIRED:
                    break
                ticks += 1
                if SIZE_OF_LIST(looked_at):
                    break
        if status != PY_LOCK_ACQUIRED:
            return ticks
        self.rung = False
        return 0
