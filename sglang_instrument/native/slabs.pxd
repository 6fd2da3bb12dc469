# What other compiled modules may use of slabs.pyx.

cdef void lie_in_slabs(object kind) noexcept  # a type without subclasses so far, and not the collector's
