# recording/measure/open_spans.py, compiled: OPEN is the same dictionary.

cdef int note_open(WatchedSpan entered) except -1:
    """Let a span be among the open ones until it is left; see recording/measure/open_spans.py."""
    if first_opened is not None and PyDict_Size(OPEN) == 0:
        tell(first_opened)
    entered.place = <size_t><void*>entered
    OPEN[entered.place] = entered
    return 0


cdef int close(WatchedSpan left) except -1:
    if left.place is not None:
        OPEN.pop(left.place, None)
        if all_closed is not None and PyDict_Size(OPEN) == 0:
            tell(all_closed)
    return 0


def note_closed(WatchedSpan left not None):
    """Let a span be among the open ones no more."""
    close(left)


cdef int tell(object who) except -1:
    try:
        who()
    except BaseException:
        swallow("watching a span")
    return 0
