# What other compiled modules may use of slabs.pyx.

cdef void lie_in_slabs(object kind) noexcept  # not the collector's; of its subclasses those that are named, too
cdef void be_seen_in_slabs(object kind) noexcept  # the same, of types whose objects the collector sees once tracked
cdef void *take_block(size_t bytes) noexcept  # behind what was made last; NULL where there is no memory
cdef void give_block_back(void *block) noexcept
