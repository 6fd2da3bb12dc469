# A growing byte buffer, and functions that put numbers and strings as JSON into it without making Python objects.

cimport cython
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_DATA, PyUnicode_GET_LENGTH, PyUnicode_KIND
from libc.math cimport signbit
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text) noexcept
    # Declared as a number: Cython converts its own Py_UCS4 to a str in sums.
    uint32_t PyUnicode_READ(int kind, const void *data, Py_ssize_t index) noexcept nogil

cdef struct Text:
    char *data
    Py_ssize_t size
    Py_ssize_t room

cdef enum:
    DONE = 0
    ENOUGH = 352 * 1024  # bytes; a chunk of lines has 256 KiB and at most one line more
    CANNOT = 1  # the pure encoder has to encode this value

cdef extern from *:
    """
    #include <stdint.h>
    static const char TWO_DIGITS[] =
        "00010203040506070809101112131415161718192021222324252627282930313233343536373839"
        "40414243444546474849505152535455565758596061626364656667686970717273747576777879"
        "8081828384858687888990919293949596979899";
    /* What stands after the backslash: 'u' where the number must be written out, 0 where there is none. */
    static const char ESCAPES[128] = {
        'u','u','u','u','u','u','u','u','b','t','n','u','f','r','u','u',
        'u','u','u','u','u','u','u','u','u','u','u','u','u','u','u','u',
        [34] = '"', [92] = '\\\\'};
    /* Whether JSON escapes one of eight ASCII characters: below 32, 34 or 92 a byte borrows from its
       highest bit, which no ASCII has set. */
    static inline int is_any_escaped(uint64_t eight) {
        const uint64_t ones = 0x0101010101010101u;
        return (((eight - 32 * ones) | ((eight ^ 34 * ones) - ones) | ((eight ^ 92 * ones) - ones))
                & 128 * ones) != 0;
    }
    /* Strings of an interface that Python 3.12 has no more know their characters only once they are asked. */
    #if PY_VERSION_HEX < 0x030C0000
        #define KNOWS_ITS_CHARACTERS(string) PyUnicode_IS_READY(string)
    #else
        #define KNOWS_ITS_CHARACTERS(string) 1
    #endif
    static const char HEXADECIMAL[] = "0123456789abcdef";
    static const char ZERO[] = "-0.0";
    static const double POWERS[] = {1, 1e3, 1e6, 1e9};
    """
    const char *TWO_DIGITS
    const char *ESCAPES
    bint KNOWS_ITS_CHARACTERS(object string) noexcept
    const char *HEXADECIMAL
    const char *ZERO
    const double *POWERS
    bint is_any_escaped(uint64_t eight) noexcept nogil


cdef inline int make_room(Text *text, Py_ssize_t more) except -1:
    """Make room for `more` bytes: double the buffer, up to ENOUGH."""
    cdef Py_ssize_t room
    cdef void *data
    if text.size + more <= text.room:
        return 0
    room = max(min(2 * text.room, ENOUGH), text.size + more, 4096)
    data = PyMem_RawRealloc(text.data, room)
    if data == NULL:
        raise MemoryError
    text.data, text.room = <char *>data, room
    return 0


cdef inline void let_go(Text *text) noexcept nogil:
    """Free the memory."""
    PyMem_RawFree(text.data)
    text.data, text.size, text.room = NULL, 0, 0


# The callers of the functions below make room first. The functions are `nogil`, although they are called with the
# GIL: so Cython checks that they use no Python object.

cdef inline void put_short(Text *text, const char *some, Py_ssize_t size) noexcept nogil:
    """Put the first `size` of 64 bytes; all 64 must be readable."""
    memcpy(text.data + text.size, some, 64)  # a constant size: the compiler inlines the copy
    text.size += size


cdef inline void put(Text *text, const char *some, Py_ssize_t size) noexcept nogil:
    memcpy(text.data + text.size, some, size)
    text.size += size


cdef inline void put_again(Text *text, Py_ssize_t begin, Py_ssize_t size) noexcept nogil:
    """Put a copy of at most 32 bytes from an earlier place; this always writes 32."""
    memcpy(text.data + text.size, text.data + begin, 32)  # a constant size: the compiler inlines the copy
    text.size += size


cdef inline int keep(Text *copy, const Text *text) except -1:
    """Copy a text into memory of exactly its size; free what `kept` held before."""
    let_go(copy)
    copy.data = <char *>PyMem_RawMalloc(max(1, text.size))
    if copy.data == NULL:
        raise MemoryError
    memcpy(copy.data, text.data, text.size)
    copy.size = copy.room = text.size
    return 0


@cython.cdivision(True)
cdef inline void put_digits(Text *text, uint64_t number) noexcept nogil:
    """Put a number: at most 20 bytes; this always writes 20."""
    cdef char digits[40]
    cdef Py_ssize_t first = 20
    cdef uint64_t rest
    while number >= 100:
        rest = number // 100
        first -= 2
        memcpy(digits + first, TWO_DIGITS + 2 * (number - 100 * rest), 2)
        number = rest
    if number >= 10:
        first -= 2
        memcpy(digits + first, TWO_DIGITS + 2 * number, 2)
    else:
        first -= 1
        digits[first] = c"0" + <char>number
    memcpy(text.data + text.size, digits + first, 20)  # a constant size: the compiler inlines the copy
    text.size += 20 - first


cdef inline void put_integer(Text *text, long long number) noexcept nogil:
    """Put a number with its sign: at most 20 bytes."""
    if number < 0:
        put(text, "-", 1)
        put_digits(text, 0 - <uint64_t>number)
    else:
        put_digits(text, <uint64_t>number)


@cython.cdivision(True)
cdef inline void put_padded(Text *text, uint64_t number, int places) noexcept nogil:
    """Put a number with leading zeros: `places` bytes."""
    cdef char *end = text.data + text.size + places
    cdef uint64_t rest
    text.size += places
    while places >= 2:
        rest = number // 100
        end -= 2
        memcpy(end, TWO_DIGITS + 2 * (number - 100 * rest), 2)
        number, places = rest, places - 2
    if places:
        end[-1] = c"0" + <char>number


cdef inline void put_decimal(Text *text, uint64_t whole, uint64_t fraction, int places) noexcept nogil:
    """Put a number with `places` decimals, without zeros at the end: at most 21 bytes and the decimals."""
    put_digits(text, whole)
    put(text, ".", 1)
    if fraction == 0:
        put(text, "0", 1)
        return
    put_padded(text, fraction, places)
    while text.data[text.size - 1] == c"0":
        text.size -= 1


@cython.cdivision(True)
cdef inline bint put_float(Text *text, double number) noexcept nogil:
    """Put a number with no more digits than it needs, and return True; at most 40 bytes.

    Return False if it needs more than fifteen. At most fifteen decimal digits identify one double, and an
    integer below 2**53 divided by a power of ten below 1e22 is rounded once: so a reader gets exactly this
    number.
    """
    cdef double size = -number if number < 0 else number
    cdef uint64_t scaled
    cdef int power, begin
    if not size < 1e15:
        return False
    if number == 0:
        begin = 0 if signbit(number) else 1
        put(text, ZERO + begin, 4 - begin)
        return True
    for power in range(4):
        if size * POWERS[power] >= 1e15:
            return False
        scaled = <uint64_t>(size * POWERS[power] + 0.5)
        if scaled / POWERS[power] == size:
            if number < 0:
                put(text, "-", 1)
            put_decimal(text, scaled // <uint64_t>POWERS[power], scaled % <uint64_t>POWERS[power], 3 * power)
            return True
    return False


cdef inline Py_ssize_t put_plain_ascii(char *to, const char *some, Py_ssize_t size) noexcept nogil:
    """Copy ASCII up to what JSON must escape; return how many bytes that were."""
    cdef Py_ssize_t position = 0
    cdef uint64_t eight
    while position + 8 <= size:
        memcpy(&eight, some + position, 8)
        if is_any_escaped(eight):
            break
        memcpy(to + position, &eight, 8)
        position += 8
    while position < size and ESCAPES[<unsigned char>some[position]] == 0:
        to[position] = some[position]
        position += 1
    return position


cdef inline void put_escaped(Text *text, unsigned char character) noexcept nogil:
    """Put an ASCII character as JSON escapes it: at most 6 bytes."""
    cdef char kind = ESCAPES[character]
    put(text, "\\", 1)
    put(text, &kind, 1)
    if kind == c"u":
        put(text, "00", 2)
        put(text, HEXADECIMAL + (character >> 4), 1)
        put(text, HEXADECIMAL + (character & 15), 1)


cdef inline int put_characters(Text *text, int kind, const void *data, Py_ssize_t size) noexcept nogil:
    """Put a text that is not all ASCII, as UTF-8; return CANNOT if it has a lone surrogate."""
    cdef uint32_t code_point
    cdef Py_ssize_t index
    cdef char *end
    for index in range(size):
        code_point = PyUnicode_READ(kind, data, index)
        end = text.data + text.size
        if code_point < 0x80:
            if ESCAPES[code_point]:
                put_escaped(text, <unsigned char>code_point)
            else:
                end[0] = <char>code_point
                text.size += 1
        elif code_point < 0x800:
            end[0] = <char>(0xC0 | code_point >> 6)
            end[1] = <char>(0x80 | code_point & 0x3F)
            text.size += 2
        elif 0xD800 <= code_point < 0xE000:
            return CANNOT
        elif code_point < 0x10000:
            end[0] = <char>(0xE0 | code_point >> 12)
            end[1] = <char>(0x80 | code_point >> 6 & 0x3F)
            end[2] = <char>(0x80 | code_point & 0x3F)
            text.size += 3
        else:
            end[0] = <char>(0xF0 | code_point >> 18)
            end[1] = <char>(0x80 | code_point >> 12 & 0x3F)
            end[2] = <char>(0x80 | code_point >> 6 & 0x3F)
            end[3] = <char>(0x80 | code_point & 0x3F)
            text.size += 4
    return DONE


cdef inline int put_string(Text *text, object string, Py_ssize_t longest) except -1:
    """Put a str with its quotes; return CANNOT, with half of it put, if it has lone surrogates or is longer."""
    cdef Py_ssize_t size, position = 0, plain
    cdef const char *ascii
    if not KNOWS_ITS_CHARACTERS(string) or PyUnicode_GET_LENGTH(string) > longest:
        return CANNOT
    size = PyUnicode_GET_LENGTH(string)
    make_room(text, 6 * size + 2)
    put(text, '"', 1)
    if not PyUnicode_IS_ASCII(string):
        if put_characters(text, PyUnicode_KIND(string), PyUnicode_DATA(string), size) == CANNOT:
            return CANNOT
    else:
        ascii = <const char *>PyUnicode_DATA(string)
        while position < size:
            plain = put_plain_ascii(text.data + text.size, ascii + position, size - position)
            text.size += plain
            position += plain
            if position < size:
                put_escaped(text, <unsigned char>ascii[position])
                position += 1
    put(text, '"', 1)
    return DONE
