# Where lines are put, and how they are handed over: memory that goes round, so that the kernel clears little anew.

cdef enum:
    SPARE = 4  # pieces of memory that are kept
    LARGEST_SPARE = ENOUGH

cdef Text[SPARE] spare


@cython.final
@cython.no_gc
cdef class Sink:
    """The lines of one scope."""

    cdef object scope
    cdef Text text
    cdef Py_ssize_t records
    cdef Py_ssize_t changed

    def __cinit__(self):
        take_spare(&self.text)

    def __dealloc__(self):
        give_back(&self.text)


@cython.final
@cython.no_gc
cdef class Block:
    """Lines in the memory in which they were made; with the last use of them it serves for others."""

    cdef Text text

    def __len__(self):
        return self.text.size

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.text.data, self.text.size, 1, flags)

    def __dealloc__(self):
        give_back(&self.text)


cdef void give_back(Text *text) noexcept:
    """Keep the memory for the next block, or free it."""
    cdef int at
    if 0 < text.room <= LARGEST_SPARE:
        for at in range(SPARE):
            if spare[at].data == NULL:
                spare[at] = text[0]
                spare[at].size = 0
                return
    let_go(text)


cdef void take_spare(Text *text) noexcept:
    cdef int at
    for at in range(SPARE):
        if spare[at].data != NULL:
            text[0] = spare[at]
            spare[at].data = NULL
            return


cdef object block_of(Text *text):
    """Return the lines, and begin anew; a block where that is no waste of the memory behind it."""
    cdef Block block
    if 3 * text.size < 2 * text.room:
        lines = PyBytes_FromStringAndSize(text.data, text.size)
        text.size = 0
        return lines
    block = Block.__new__(Block)
    block.text = text[0]
    text.data, text.size, text.room = NULL, 0, 0
    return block
