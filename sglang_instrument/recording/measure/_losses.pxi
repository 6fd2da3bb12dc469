# recording/measure/losses.py, compiled: count records that could not be made or kept, without using memory.

cdef long long dropped_count = 0


cpdef int drop_record(str where, event="") except -1:
    """Count a record that could not be made or kept; call it while the exception is handled."""
    global dropped_count
    try:
        if buffer is OFF:
            reraise_if_programs_own()
        else:
            dropped_count += 1
            log_dropped_record(where, event)
    except MemoryError:  # there may be no memory for the notice, either
        pass
    return 0


cdef int log_swallowed(str where) except -1:
    try:
        log_swallowed_now(where)
    except MemoryError:
        pass
    return 0


cdef int drop_record_pending(str where) except -1:
    """Do what `drop_record` does for a C-level exception, which no `except` handles yet."""
    try:
        raise_pending()
    except BaseException:
        drop_record(where)
    return 0


def dropped_records():
    """Return how many records were lost on the threads that made them, since this process began."""
    return dropped_count
