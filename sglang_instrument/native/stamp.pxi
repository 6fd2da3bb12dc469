# The state of the sources that this module was compiled from; the build defines it. See stamps.py.
cdef extern from *:
    """
    #ifndef SGLANG_INSTRUMENT_STAMP
    #define SGLANG_INSTRUMENT_STAMP "compiled by hand"
    #endif
    """
    const char* SGLANG_INSTRUMENT_STAMP

STAMP = SGLANG_INSTRUMENT_STAMP.decode("ascii")
