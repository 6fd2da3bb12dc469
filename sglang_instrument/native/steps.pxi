# The steps of a path: from one object to the next.

@cython.no_gc
cdef class Step:
    cdef object go(self, object here, tuple values):
        raise NotImplementedError


@cython.no_gc
cdef class AttributeStep(Step):
    cdef str name

    cdef object go(self, object here, tuple values):
        return getattr(here, self.name, MISSING)


@cython.no_gc
cdef class KeyStep(Step):
    cdef object key

    cdef object go(self, object here, tuple values):
        return at(here, self.key)


@cython.no_gc
cdef class KeyOfStep(Step):
    """Take the key that lies at a path of attributes of a local."""

    cdef Py_ssize_t local
    cdef tuple attributes

    cdef object key(self, tuple values):
        found = values[self.local] if self.local >= 0 else MISSING
        for name in self.attributes:
            if found is MISSING:
                break
            found = getattr(found, <str>name, MISSING)
        return found

    cdef object go(self, object here, tuple values):
        key = self.key(values)
        return MISSING if key is MISSING else at(here, key)


@cython.no_gc
cdef class PickStep(Step):
    cdef tuple names

    cdef object go(self, object here, tuple values):
        return pure_pick(here, self.names)


@cython.no_gc
cdef class EachStep(Step):
    """Go over all elements, or those whose attribute is true; `rest` leads on from each."""

    cdef Step asked
    cdef object field  # that a record must have to count
    cdef Step field_of
    cdef tuple rest

    cdef object go(self, object here, tuple values):
        cdef list found = []
        kind = type(here)
        if kind is list:
            for each in <list>here:
                if not self.add(found, each, values):
                    return MISSING
            return found
        for each in here.values() if kind is dict else pure_elements(here):
            if not self.add(found, each, values):
                return MISSING
        return found

    cdef bint add(self, list found, object each, tuple values) except -1:
        """Add what `each` leads to, if it counts; return whether all could be read."""
        cdef Step step
        if self.field is not None and self.field not in each:
            return True
        if self.field_of is not None:
            key = (<KeyOfStep>self.field_of).key(values)
            if key is MISSING:
                return False
            if key not in each:
                return True
        if self.asked is not None:
            answer = self.asked.go(each, values)
            if answer is MISSING:
                return False
            if not truth(answer):
                return True
        for step in self.rest:
            each = step.go(each, values)
            if each is MISSING:
                return False
        found.append(each)
        return True


cdef object at(object here, object key):
    """Return `here[key]`, MISSING where the usual collections have no such entry."""
    cdef PyObject *found
    cdef Py_ssize_t index, size
    kind = type(here)
    if kind is dict:
        found = PyDict_GetItemWithError(here, key)
        return MISSING if found is NULL else <object>found
    if (kind is list or kind is tuple) and type(key) is int:
        index, size = key, len(here)
        return PySequence_GetItem(here, index) if -size <= index < size else MISSING
    if here is None or kind is int or kind is float or kind is bool:
        return MISSING
    if type(key) is str and (kind is str or kind is list or kind is tuple or kind is bytes):
        return MISSING  # as with the above: asking them raises, and a traceback costs more than all other fields
    return pure_key(here, key)
