# Find our Task of an asyncio task ("owner") by the owner's address, checked against asyncio's weak reference to it.
#
# An attribute on the owner would be one more object that the garbage collector visits in each pass; with ten
# thousand tasks that takes longer than their spans. asyncio has a weak set of all tasks, and our Task also holds
# the weak reference in it: so no other object gets that reference's address, and an owner with this weak reference
# is the one that was numbered at this address, not a later one. Without such a reference (a task that starts
# eagerly, a loop with its own task type), our Task is an attribute of the owner.

from libc.stdlib cimport calloc, free

cdef extern from *:
    """
    static PyObject **sglang_instrument_attributes(PyObject *owner) {
        Py_ssize_t offset = Py_TYPE(owner)->tp_dictoffset;
        return offset > 0 ? (PyObject **)((char *)owner + offset) : NULL;
    }
    /* The first weak reference to an object; they are a list. */
    static PyObject *sglang_instrument_first(PyObject *owner) {
        Py_ssize_t offset = Py_TYPE(owner)->tp_weaklistoffset;
        return offset > 0 ? *(PyObject **)((char *)owner + offset) : NULL;
    }
    #define sglang_instrument_next(reference) ((PyObject *)((PyWeakReference *)(reference))->wr_next)
    #define sglang_instrument_callback(reference) (((PyWeakReference *)(reference))->wr_callback)
    #define sglang_instrument_is_dead(reference) (((PyWeakReference *)(reference))->wr_object == Py_None)
    """
    PyObject** attributes_of "sglang_instrument_attributes"(PyObject*) noexcept
    PyObject* first_reference "sglang_instrument_first"(PyObject*) noexcept
    PyObject* next_reference "sglang_instrument_next"(PyObject*) noexcept
    PyObject* callback_of "sglang_instrument_callback"(PyObject*) noexcept
    bint is_dead "sglang_instrument_is_dead"(PyObject*) noexcept
    void Py_INCREF(PyObject*) noexcept

cdef struct Owner:
    PyObject *address  # of an asyncio task, which may be gone; NULL: a free place
    PyObject *task

cdef Owner *owners = NULL  # a hash table by address, with linear probing
cdef size_t owners_room = 0  # a power of two, or 0
cdef size_t owners_filled = 0
cdef bint owners_met = False  # whether any was added since gone ones were dropped
cdef object forgets_owner = None  # the callback of asyncio's weak references to tasks
cdef enum:
    FEWEST_OWNERS = 256


cdef inline Owner* place_of(PyObject *address) noexcept:
    """Return the place of this address, or the free place for it; the table is never full."""
    cdef size_t slot = <size_t>address // 16 * <size_t>0x9E3779B97F4A7C15 >> 20
    while True:
        slot &= owners_room - 1
        if owners[slot].address == address or owners[slot].address == NULL:
            return &owners[slot]
        slot += 1


cdef inline bint has_reference(PyObject *address, PyObject *reference) noexcept:
    cdef PyObject *current = first_reference(address)
    while current != NULL and current != reference:
        current = next_reference(current)
    return current != NULL


cdef inline Task task_known_of(object owner):
    cdef Task task
    cdef Owner *place
    cdef PyObject **attributes
    if owners_room:
        place = place_of(<PyObject*>owner)
        if place.task != NULL:
            task = <Task>place.task
            if has_reference(<PyObject*>owner, <PyObject*>task.reference):
                return task
    attributes = attributes_of(<PyObject*>owner)
    return None if attributes != NULL and attributes[0] == NULL else task_in_attribute(owner)


cdef Task task_in_attribute(object owner):
    try:
        known = getattr(owner, "_sglang_instrument", None)
    except BaseException:  # a third-party task, which may raise anything
        reraise_if_programs_own()
        return None
    return <Task>known if type(known) is Task else None


cdef int know_task(object owner, Task task) except -1:
    """Remember our Task of an asyncio task.

    Raises:
        AttributeError: asyncio has no weak reference to the owner, and the owner takes no attributes.
    """
    cdef PyObject *reference = first_reference(<PyObject*>owner)
    while reference != NULL and callback_of(reference) != <PyObject*>forgets_owner:
        reference = next_reference(reference)
    if reference == NULL or not has_room_for_owner():
        owner._sglang_instrument = task
        return 0
    task.reference = <object>reference
    put_owner(<PyObject*>owner, <PyObject*>task)
    return 0


cdef void put_owner(PyObject *address, PyObject *task) noexcept:
    """Store a task by its owner's address; release the task of an earlier owner at this address, if any."""
    global owners_filled, owners_met
    cdef Owner *place = place_of(address)
    cdef PyObject *gone = place.task
    owners_filled += place.address == NULL
    owners_met = True
    Py_INCREF(task)
    place.address, place.task = address, task
    let_owner_go(gone)


cdef void let_owner_go(PyObject *task) noexcept:
    if task != NULL:
        (<Task>task).reference = None  # spans may still refer to the task
        Py_XDECREF(task)


cdef bint has_room_for_owner() noexcept:
    return 3 * (owners_filled + 1) < 2 * owners_room or keep_living_owners()


cdef inline bint is_alive(Owner *owner) noexcept:
    return owner.task != NULL and not is_dead(<PyObject*>(<Task>owner.task).reference)


cdef bint keep_living_owners() noexcept:
    """Drop the entries of owners that are gone, and resize the table; return False without memory."""
    global owners, owners_room, owners_filled, owners_met
    cdef Owner *old = owners
    cdef size_t old_room = owners_room
    cdef size_t room = FEWEST_OWNERS
    cdef size_t living = 0
    cdef size_t slot
    for slot in range(old_room):
        living += is_alive(&old[slot])
    while room < 2 * (living + 1):
        room *= 2
    cdef Owner *made = <Owner*>calloc(room, sizeof(Owner))
    if made == NULL:
        return False
    owners, owners_room, owners_filled, owners_met = made, room, living, False
    for slot in range(old_room):
        if is_alive(&old[slot]):
            place_of(old[slot].address)[0] = old[slot]
            old[slot].task = NULL
    let_owners_go(old, old_room)
    return True


cdef void let_owners_go(Owner *old, size_t room) noexcept:
    cdef size_t slot
    for slot in range(room):
        let_owner_go(old[slot].task)
    free(old)


cdef void forget_owners() noexcept:
    global owners, owners_room, owners_filled, owners_met
    cdef Owner *old = owners
    cdef size_t room = owners_room
    owners, owners_room, owners_filled, owners_met = NULL, 0, 0, False
    let_owners_go(old, room)
