# Appending to a file while other threads run: they are stopped once for it, not once for each thing that is asked.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_SetFromErrno
from libc.errno cimport EINTR, errno
from posix.stat cimport fstat, struct_stat
from posix.types cimport dev_t, ino_t
from posix.unistd cimport write

cdef enum:
    GONE = -1
    FAILED = -2  # errno says how


cdef Py_ssize_t append_some(
    int descriptor, dev_t device, ino_t inode, const char *data, Py_ssize_t size
) noexcept nogil:
    """Append to a file, if the descriptor still is that file's and it was not deleted; return how much it took."""
    cdef struct_stat known
    cdef Py_ssize_t written
    if fstat(descriptor, &known) != 0 or known.st_nlink == 0:
        return GONE
    if known.st_dev != device or known.st_ino != inode:
        return GONE
    written = write(descriptor, data, size)
    if written < 0:
        return 0 if errno == EINTR else FAILED  # whoever called sees the signal, and calls again
    return written


def write_unless_gone(int descriptor, inode, lines, Py_ssize_t begin):
    """Write to a file; see recording/files.py."""
    cdef Py_buffer view
    cdef Py_ssize_t written
    cdef dev_t device = inode[0]
    cdef ino_t number = inode[1]
    PyObject_GetBuffer(lines, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            written = append_some(descriptor, device, number, <char *>view.buf + begin, view.len - begin)
        if written == FAILED:
            PyErr_SetFromErrno(OSError)
        return written
    finally:
        PyBuffer_Release(&view)
