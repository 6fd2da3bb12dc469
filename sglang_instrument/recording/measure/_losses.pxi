# recording/measure/losses.py, compiled: count records that could not be made or kept, without using memory.

cdef long long lost_records = 0


cpdef int lose(str where, event="") except -1:
    """Count a record that could not be made or kept; call it while the exception is handled."""
    global lost_records
    try:
        if buffer is OFF:
            let_through()
        else:
            lost_records += 1
            note_lost(where, event)
    except MemoryError:  # there may be no memory for the notice, either
        pass
    return 0


cdef int swallow(str where) except -1:
    try:
        note_swallowed(where)
    except MemoryError:
        pass
    return 0


cdef int lose_pending(str where) except -1:
    """Do the same for a C-level exception, which no `except` handles yet."""
    try:
        raise_pending()
    except BaseException:
        lose(where)
    return 0


def lost():
    """Return how many records were lost on the threads that made them, since this process began."""
    return lost_records
