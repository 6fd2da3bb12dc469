# Appending to a file while other threads run: they are stopped once for it, not once for each thing that is asked.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_SetFromErrno
from libc.errno cimport EINTR, errno
from posix.stat cimport fstat, struct_stat
from posix.unistd cimport write


def write_unless_gone(int descriptor, lines, Py_ssize_t begin):
    """Write to a file; see recording/files.py."""
    cdef Py_buffer view
    cdef struct_stat known
    cdef Py_ssize_t written = -1
    cdef bint gone
    PyObject_GetBuffer(lines, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            gone = fstat(descriptor, &known) != 0 or known.st_nlink == 0
            if not gone:
                written = write(descriptor, <char *>view.buf + begin, view.len - begin)
        if not gone and written < 0 and errno == EINTR:
            written = 0  # whoever called sees the signal, and calls again
        if not gone and written < 0:
            PyErr_SetFromErrno(OSError)
        return written
    finally:
        PyBuffer_Release(&view)
