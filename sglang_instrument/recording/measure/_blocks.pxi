# Let `with` enter and leave a span, or a run of a region, without creating bound methods.
#
# A `with` looks up __enter__ and __exit__ on the type and binds both: two objects per block. The second one
# exists, and the garbage collector visits it, until the block ends. Here both are descriptors that return the
# span itself: a call without arguments enters it, a call with an exception's three parts leaves it. With usual
# methods a span costs 1/33 of the reference's log call; the bound is 1/40.

cdef extern from *:
    """
    #ifndef Py_TPFLAGS_HAVE_VECTORCALL
    #define Py_TPFLAGS_HAVE_VECTORCALL _Py_TPFLAGS_HAVE_VECTORCALL
    #endif
    static void sglang_instrument_callable(PyObject *type, Py_ssize_t offset) {
        PyTypeObject *changing = (PyTypeObject *)type;
        changing->tp_vectorcall_offset = offset;
        changing->tp_call = PyVectorcall_Call;
        changing->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
        PyType_Modified(changing);
    }
    static void sglang_instrument_put(PyObject *type, PyObject *name, PyObject *value) {
        PyTypeObject *changing = (PyTypeObject *)type;
        if (PyDict_SetItem(changing->tp_dict, name, value) < 0) PyErr_Clear();
        PyType_Modified(changing);
    }
    static int sglang_instrument_is_python_subclass(PyObject *instance) {
        return PyType_HasFeature(Py_TYPE(instance), Py_TPFLAGS_HEAPTYPE);
    }
    """
    Py_ssize_t size_of_dict "PyDict_GET_SIZE"(object) noexcept
    bint is_python_subclass "sglang_instrument_is_python_subclass"(object) noexcept
    void make_callable "sglang_instrument_callable"(object, Py_ssize_t) noexcept
    void put_into_type "sglang_instrument_put"(object, object, object) noexcept
    size_t PyVectorcall_NARGS(size_t) noexcept


@cython.no_gc
cdef class Block:
    """Base of all that a `with` enters and leaves: a span, a run of a region."""

    def __cinit__(self):
        self.called = <vectorcallfunc>call_block

    cdef int enter(self) except -1:
        return 0

    cdef int finish(self, object error, object value) except -1:
        return 0


cdef object call_block(PyObject *called, PyObject * const *args, size_t flagged, PyObject *names):
    """Enter or leave a block: its vectorcall."""
    cdef Block self = <Block>called
    cdef size_t n = PyVectorcall_NARGS(flagged)
    if names == NULL:
        if n == 0:
            return entered_block(self)
        if n == 3:
            leave_block(self, <object>args[0], <object>args[1])
            return None
    raise TypeError(f"{type(self).__name__!r} object is not callable: use it as `with span(...):`")


cdef inline object entered_block(Block self):
    """Enter a block, and return the block or the span that `with` gets: of an earlier block's object, a new one."""
    if self.entered:
        return enter_again(self)
    enter_block(self)
    return self


cdef int enter_block(Block self) except -1:
    """Enter a block; log a failure: the span then lacks only what the failed part would have set."""
    try:
        self.enter()
    except BaseException:
        log_swallowed("beginning a span")
    return 0


cdef int leave_block(Block self, object error, object value) except -1:
    """Leave a block; a failure loses its record, which is counted."""
    if size_of_dict(AGAIN) and left_again(self, error, value, None):
        return 0
    try:
        self.finish(error, value)
    except BaseException:
        drop_record("recording a span")
    return 0


cdef object NOT_GIVEN = object()


cdef class BlockMethod:
    """The descriptor `__enter__` or `__exit__` of a block: bound to a block, it returns the block itself."""

    cdef str name

    def __init__(self, name):
        self.name = name

    def __get__(self, instance, owner):
        if instance is None:
            return self
        return BoundBlockMethod(instance) if is_python_subclass(instance) else instance

    def __call__(self, block, *exception):
        return BoundBlockMethod(block)(*exception)

    @property
    def __name__(self):
        return self.name


cdef class BoundBlockMethod:
    """Enter or leave a block of a subclass made in Python, which may define another `__call__`."""

    cdef Block block

    def __init__(self, Block block not None):
        self.block = block

    def __call__(self, error=NOT_GIVEN, value=None, trace=None):
        if error is NOT_GIVEN:
            return entered_block(self.block)
        leave_block(self.block, error, value)


cdef int install_enter_exit(object kind) except -1:
    """Let `with` enter and leave blocks of a type without bound methods."""
    cdef Block some = Block.__new__(Block)
    make_callable(kind, <char*>&some.called - <char*><PyObject*>some)
    put_into_type(kind, "__enter__", BlockMethod("__enter__"))
    put_into_type(kind, "__exit__", BlockMethod("__exit__"))
    return 0


cdef class ReadyAwaitable:
    """An awaitable that returns a value at once."""

    cdef object value

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        value, self.value = self.value, None
        raise StopIteration(value)


cdef object ready(object value):
    cdef ReadyAwaitable made = ReadyAwaitable.__new__(ReadyAwaitable)
    made.value = value
    return made
