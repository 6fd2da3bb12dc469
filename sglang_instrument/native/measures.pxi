# The measures of a path's end: those of `patching.measures`, without a list where there need be none.

@cython.no_gc
cdef class Numbers(Node):
    """The numbers that a list holds, or the sizes of what is none."""

    cdef Node of

    cdef object find(self, Reading *reading):
        found = get(self.of, reading)
        if found is MISSING:
            return MISSING
        if type(found) is not list:
            return pure_numbers_of(found)
        if all_numbers(found):
            return found
        return [value if isinstance(value, (int, float)) else size_of(value) for value in <list>found]


@cython.no_gc
cdef class Mean(Node):
    cdef Node of  # Numbers

    cdef object find(self, Reading *reading):
        cdef list numbers
        found = get(self.of, reading)
        if found is MISSING:
            return MISSING
        numbers = found
        return sum_of(numbers) / len(numbers) if numbers else 0


@cython.no_gc
cdef class Measured(Node):
    """A measure of `patching.measures` that is not one of those below."""

    cdef Node of
    cdef object measure

    cdef object find(self, Reading *reading):
        found = get(self.of, reading)
        return MISSING if found is MISSING else self.measure(found)


@cython.no_gc
cdef class Size(Measured):
    cdef object find(self, Reading *reading):
        found = get(self.of, reading)
        return MISSING if found is MISSING else size_of(found)

    cdef bint fill(self, Reading *reading, bint kept, Value *to) except -1:
        if self.slot >= 0:
            return Node.fill(self, reading, kept, to)
        found = get(self.of, reading)
        kind = type(found)
        if kind is list or kind is str or kind is dict or kind is tuple:
            to.kind, to.held.integer = IS_INTEGER, len(found)
            return True
        if found is MISSING:
            return False
        hold(to, IS_OBJECT, reduced(size_of(found)))
        return True


@cython.no_gc
cdef class Sizes(Measured):
    cdef object find(self, Reading *reading):
        found = get(self.of, reading)
        if type(found) is not list:
            return MISSING if found is MISSING else self.measure(found)
        if are_numbers(found):
            return len(found)
        return [size_of(value) for value in <list>found]


@cython.no_gc
cdef class Total(Measured):
    cdef object find(self, Reading *reading):
        found = get(self.of, reading)
        return MISSING if found is MISSING else total_of(found)


@cython.no_gc
cdef class Totals(Measured):
    cdef bint something  # asked for: nothing adds up to nothing

    cdef object find(self, Reading *reading):
        found = get(self.of, reading)
        if type(found) is not list:
            return MISSING if found is MISSING else self.measure(found)
        if self.something and not found:
            return MISSING
        if are_numbers(found):
            return sum_of(found)
        return [total_of(value) for value in <list>found]


cdef bint are_numbers(list values) except -1:
    if all_numbers(values):
        return True
    for value in values:
        if not isinstance(value, (int, float)):
            return False
    return True


@cython.no_gc
cdef class Any(Measured):
    cdef bint none

    cdef object find(self, Reading *reading):
        found = get(self.of, reading)
        return MISSING if found is MISSING else truth(found) != self.none


@cython.no_gc
cdef class AnyOfEach(Any):
    cdef object find(self, Reading *reading):
        found = get(self.of, reading)
        if type(found) is not list:
            return MISSING if found is MISSING else self.measure(found)
        for value in <list>found:
            if truth(value):
                return not self.none
        return self.none


@cython.no_gc
cdef class Percent(Measured):
    """The total as per cent of the run's own duration; `numbers` of a list."""

    cdef object find(self, Reading *reading):
        cdef double total, duration_sec
        found = get(self.of, reading)
        if found is MISSING:
            return MISSING
        if is_given(reading):
            return pure_percent(found, (<object>reading.run).duration_sec)
        if reading.duration_ns < 0:
            return MISSING
        duration_sec = reading.duration_ns / 1e9
        if type(found) is not list or duration_sec == 0:
            return pure_percent(found, duration_sec)
        if not found:
            return 0.0
        if not is_plain_sum(found, &total):
            return pure_percent(found, duration_sec)
        return percent_of(total, duration_sec)


cdef double percent_of(double total, double duration_sec) except? -1:
    cdef double share = 100 * total / duration_sec, hundredths = share * 100
    if fabs(hundredths) < 1e9 and fabs(hundredths - floor(hundredths) - 0.5) > 1e-4:
        return rint(hundredths) / 100  # what round() gives where nothing is near the middle
    return round(share, 2)


cdef enum Sum:
    NO_SUM, TOTAL, SUM, MEAN, PERCENT


@cython.no_gc
cdef class OfDurations(Node):
    """A total, mean or percentage of the durations of regions, of which no list is made."""

    cdef FieldOfEach of
    cdef Node listed  # does the same by a list
    cdef Sum what

    cdef object find(self, Reading *reading):
        return self.listed.find(reading)

    cdef bint fill(self, Reading *reading, bint kept, Value *to) except -1:
        cdef double total = 0, duration_sec = reading.duration_ns / 1e9
        cdef long long last_ns = 0
        cdef Py_ssize_t count = 0
        if is_given(reading) or not self.add(self.of.of.spans(reading), &total, &count, &last_ns):
            return Node.fill(self, reading, kept, to)
        if self.what == PERCENT:
            if duration_sec <= 0:
                return Node.fill(self, reading, kept, to)
            to.kind, to.held.number = IS_FLOAT, percent_of(total, duration_sec) if count else 0.0
        elif count == 0:
            if self.what == SUM:
                return False
            to.kind, to.held.integer = IS_INTEGER, 0
        elif count == 1:
            to.kind, to.held.integer = IS_NANOSECONDS, last_ns
        else:
            to.kind, to.held.number = IS_FLOAT, total / count if self.what == MEAN else total
        return True

    cdef bint add(self, list spans, double *total, Py_ssize_t *count, long long *last_ns) except -1:
        """Add up the durations, as sum() does it; return whether that could be done."""
        cdef Span span
        for one in spans:
            span = <Span>one
            if not is_of(span, self.of.of.event):
                continue
            if type(span.fields) is Fields:
                if (<Fields>span.fields).names.times:
                    return False
            elif span.fields is not None and DURATION_SEC in span.fields:
                return False
            last_ns[0] = span.end - span.start
            total[0] += last_ns[0] / 1e9
            count[0] += 1
        return count[0] <= 2 or ADDS_PLAINLY


@cython.no_gc
cdef class IsMissing(Node):
    cdef Node of

    cdef object find(self, Reading *reading):
        found = get(self.of, reading)
        return found is MISSING or found is None
