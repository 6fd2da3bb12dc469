# Memory that was not looked at for long is asked for before it is read, in one go: each wait for it would be longer
# than what is done with it.

cdef extern from *:
    """
    #define sglang_instrument_fetch(address) __builtin_prefetch((const void *)(address))
    """
    void fetch "sglang_instrument_fetch"(const void *address) noexcept nogil  # follows no address

cdef enum:
    CACHE_LINE = 64  # bytes


cdef inline void fetch_lines(const char *address, Py_ssize_t lines) noexcept nogil:
    """Fetch so many lines of the processor's cache, or one more if they begin within one."""
    cdef Py_ssize_t at
    for at in range(lines):
        fetch(address + CACHE_LINE * at)
