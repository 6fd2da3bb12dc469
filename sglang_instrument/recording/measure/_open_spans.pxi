# recording/measure/open_spans.py, compiled: OPEN is the same dictionary.

cdef int note_open(WatchedSpan entered) except -1:
    """Add a span to the open ones; see recording/measure/open_spans.py."""
    if first_opened is not None and PyDict_Size(OPEN) == 0:
        tell(first_opened)
    entered.open_key = <size_t><void*>entered
    OPEN[entered.open_key] = entered
    return 0


cdef int close(WatchedSpan left) except -1:
    if left.open_key is not None:
        OPEN.pop(left.open_key, None)
        if all_closed is not None and PyDict_Size(OPEN) == 0:
            tell(all_closed)
    return 0


def note_closed(WatchedSpan left not None):
    """Remove a span from the open ones."""
    close(left)


cdef int tell(object hook) except -1:
    try:
        hook()
    except BaseException:
        log_swallowed("watching a span")
    return 0
