# How large things are, and what they add up to: lists, texts, tensors in memory.

cdef extern from *:
    """
    #include <stdint.h>
    typedef struct { int32_t device_type; int32_t device_id; } si_dl_device;
    typedef struct { uint8_t code; uint8_t bits; uint16_t lanes; } si_dl_dtype;
    typedef struct {
        void *data; si_dl_device device; int32_t ndim; si_dl_dtype dtype;
        int64_t *shape; int64_t *strides; uint64_t byte_offset;
    } si_dl_tensor;  /* of DLPack; a DLManagedTensor begins with it */
    """
    ctypedef struct si_dl_device:
        int32_t device_type
    ctypedef struct si_dl_dtype:
        uint8_t code
        uint8_t bits
        uint16_t lanes
    ctypedef struct si_dl_tensor:
        void *data
        si_dl_device device
        int32_t ndim
        si_dl_dtype dtype
        int64_t *shape
        int64_t *strides
        uint64_t byte_offset



cdef bint truth(object value) except -1:
    kind = type(value)
    if (
        kind is bool or value is None or kind is list or kind is dict or kind is str or kind is int
        or kind is float or kind is tuple
    ):
        return bool(value)
    return pure_truth(value)


cdef inline bint is_number(object value):
    kind = type(value)
    return kind is int or kind is float or kind is bool


cdef bint all_numbers(list values):
    """Whether all are plain numbers; nothing in here runs Python."""
    for value in values:
        if not is_number(value):
            return False
    return True


cdef object size_of(object value):
    kind = type(value)
    if kind is list or kind is str or kind is dict or kind is tuple:
        return len(value)
    shape = getattr(value, "shape", None)
    if shape is not None and len(shape):
        last = PySequence_GetItem(shape, -1) if isinstance(shape, tuple) else PyObject_GetItem(shape, -1)
        return last if type(last) is int else int(last)
    return len(value)


cdef object total_of(object value):
    kind = type(value)
    if kind is int or kind is float or kind is bool:
        return value
    if kind is list or kind is tuple:
        return sum(value)
    if kind is dict:
        return sum(value.values())
    found = tensor_total(value)
    return pure_total(value) if found is None else found


cdef object Tensor = None  # torch's, as soon as one was seen
cdef object to_dlpack = None
cdef enum:
    MOST_SUMMED = 1 << 16  # elements: here the GIL is held, while torch gives it away for a longer sum


cdef bint ADDS_PLAINLY = sys.version_info < (3, 12)  # since then, sum() makes up for what each addition loses


cdef bint is_plain_sum(list values, double *total):
    """Whether these are floats whose sum is what one gets by adding them in turn, and that sum."""
    if not values or (len(values) > 2 and not ADDS_PLAINLY):
        return False
    total[0] = 0.0
    for value in values:
        if type(value) is not float:
            return False
        total[0] += <double>value
    return True


cdef object sum_of(list values):
    cdef double total = 0
    if not values:
        return 0
    return total if is_plain_sum(values, &total) else sum(values)


cdef bint is_tensor(object value):
    """Whether this is a plain tensor of torch, which nobody imports here."""
    global Tensor, to_dlpack
    kind = type(value)
    if Tensor is None and kind.__module__ == "torch" and kind.__name__ == "Tensor":
        dlpack = sys.modules.get("torch.utils.dlpack")
        to_dlpack = getattr(dlpack, "to_dlpack", None)
        if to_dlpack is not None:
            Tensor = kind
    return kind is Tensor


cdef object tensor_total(object value):
    """Return the sum of a tensor of integers in memory, in a sixth of the time that `.sum().item()` takes.

    None for any other: the sum of floats depends on the order in which they are added.
    """
    if not is_tensor(value) or value.is_cpu is not True:
        return None
    try:
        capsule = to_dlpack(value)  # it holds on to the tensor while it is looked at
    except BaseException:  # one of bool in an old torch, a sparse one, one that a transformation looks through
        let_through()
        return None
    if not PyCapsule_IsValid(capsule, "dltensor"):
        return None
    cdef si_dl_tensor *seen = <si_dl_tensor *>PyCapsule_GetPointer(capsule, "dltensor")
    if seen.device.device_type != 1 or seen.dtype.lanes != 1 or seen.data is NULL:
        return None
    cdef int64_t count = count_of(seen)
    if count < 0 or count > MOST_SUMMED:
        return None
    cdef char *data = <char *>seen.data + seen.byte_offset
    cdef uint64_t total = 0  # wraps around where torch's does
    cdef int64_t index
    cdef int code = seen.dtype.code, bits = seen.dtype.bits
    if code == 0 and bits == 64:
        for index in range(count):
            total += <uint64_t>(<int64_t *>data)[index]
    elif code == 0 and bits == 32:
        for index in range(count):
            total += <uint64_t><int64_t>(<int32_t *>data)[index]
    elif (code == 1 or code == 6) and bits == 8:
        for index in range(count):
            total += (<uint8_t *>data)[index]
    else:
        return None
    return <int64_t>total


cdef int64_t count_of(si_dl_tensor *seen) noexcept:
    """Return how many numbers lie one behind the other, -1 where there are gaps."""
    cdef int64_t count = 1
    cdef int axis
    for axis in range(seen.ndim - 1, -1, -1):
        if seen.strides is not NULL and seen.shape[axis] != 1 and seen.strides[axis] != count:
            return -1
        count *= seen.shape[axis]
    return count
