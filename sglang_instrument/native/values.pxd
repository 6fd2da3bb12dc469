# What other compiled modules may use of values.pyx.

cdef object reduced(object value)  # values.reduce_value
cpdef dict reduce(dict extra)
