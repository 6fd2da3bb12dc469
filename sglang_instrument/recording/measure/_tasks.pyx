# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, embedsignature=False, binding=False, nonecheck=False
"""recording/measure/tasks.py, compiled: give asyncio tasks and threads small numbers."""

cimport cython
from cpython.dict cimport PyDict_Next, PyDict_Size
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from cpython.ref cimport Py_XDECREF

include "sglang_instrument/native/module.pxi"

cdef extern from "Python.h":
    object PyWeakref_NewRef(object, object)

# connect() sets these, from recording/measure/tasks.py.
cdef object ask_asyncio = None
cdef object reraise_if_programs_own = None

cdef dict running = {}  # asyncio's running tasks, by loop; empty before know_asyncio()
cdef object asking = None  # an AskAsyncio that replaces it where asyncio hides it
cdef object running_loop = None  # asyncio's function
cdef object seen = None  # called for new tasks
cdef object told_loop = None  # the arguments and time of the last call of `seen`
cdef unsigned long told_thread = 0
cdef long long told_at = 0
cdef enum:
    TELL_AGAIN_NS = 10_000_000
cdef Py_ssize_t THREADS_LIMIT = 0
cdef long long next_number = 0


# Nothing in it refers back to it: `loop` is a weak reference, and the encoder in `first_logged_by` keeps no task.
@cython.no_gc
cdef class Task:
    """An asyncio task or a thread; see recording/measure/tasks.py."""

    def __cinit__(self):
        self.made_by = NOBODY

    def __init__(
        self,
        long long number,
        object spawned_by=None,
        unsigned long thread=0,
        object loop=None,
        object first_logged_by=None,
        size_t counted_by=0,
        long long waited=0,
        long long suspended_at=0,
    ):
        self.number, self.thread = number, thread
        self.made_by = NOBODY if spawned_by is None else spawned_by
        self.loop, self.first_logged_by, self.counted_by = loop, first_logged_by, counted_by
        self.waited, self.suspended_at = waited, suspended_at

    @property
    def spawned_by(self):
        """The number of the task that made it, if that is known."""
        return None if self.made_by == NOBODY else self.made_by

    def __reduce__(self):
        from sglang_instrument.recording.measure.tasks import Task as public

        return public, (self.number, self.spawned_by)


cdef dict known_threads = {}
_threads = known_threads


cdef bint some_task_runs() noexcept:
    return PyDict_Size(running) != 0 or (asking is not None and bool_of(asking))


cdef bint bool_of(object asked) noexcept:
    return bool(asked)


include "sglang_instrument/recording/measure/_owners.pxi"


cdef Task task_here(unsigned long thread):
    """Return the known task of the only loop in the process, if it runs on this thread.

    Reading this thread's loop takes longer.
    """
    cdef PyObject *key = NULL
    cdef PyObject *value = NULL
    cdef Py_ssize_t position = 0
    cdef Task task
    if PyDict_Size(running) == 1 and PyDict_Next(running, &position, &key, &value):
        owner = <object>value  # takes a reference before anything can run
        task = task_known_of(owner)
        if task is not None and task.thread == thread:
            return task
    return None


cdef Task current_task(object inherited):
    cdef Task task
    if not some_task_runs():
        return None
    task = task_here(PyThread_get_thread_ident())
    return look_up_task(inherited) if task is None else task


cdef Task look_up_task(object inherited):
    cdef Task task
    loop = None if running_loop is None else running_loop()
    if loop is None:
        return None
    owner = running.get(loop) if asking is None else asking.get(loop)
    if owner is None:
        return None
    task = task_known_of(owner)
    if task is None:
        return meet(owner, loop, inherited)
    task.thread = PyThread_get_thread_ident()  # its loop may have been moved
    return task


cdef Task meet(object owner, object loop, object inherited):
    """Number an asyncio task that is seen for the first time."""
    global next_number
    cdef unsigned long thread = PyThread_get_thread_ident()
    cdef Task met
    cdef Task made_by
    tell_of_new_task(loop, thread)
    try:
        met = Task.__new__(Task)
        met.number = next_number
        next_number += 1
        made_by = <Task>inherited if type(inherited) is Task else thread_task_of(thread)
        met.made_by, met.thread, met.loop = made_by.number, thread, PyWeakref_NewRef(loop, None)
        know_task(owner, met)
    except BaseException:  # a third-party task or loop that takes no attribute or weak reference
        reraise_if_programs_own()
        return None
    return met


cdef int tell_of_new_task(object loop, unsigned long thread) except -1:
    """Call `seen` for a new task; for tasks of the same loop at most every TELL_AGAIN_NS."""
    global told_loop, told_thread, told_at
    cdef long long now = now_ns()
    loop_ref = None
    try:
        loop_ref = PyWeakref_NewRef(loop, None)  # the same object while the loop lives
    except TypeError:
        pass
    if loop_ref is None or loop_ref is not told_loop or thread != told_thread or now - told_at >= TELL_AGAIN_NS:
        told_loop, told_thread, told_at = loop_ref, thread, now
        if seen is not None:
            seen(loop, thread)
    return 0


cdef Task thread_task_of(unsigned long ident):
    global next_number
    cdef Task task = known_threads.get(ident)
    if task is None:
        if len(known_threads) >= THREADS_LIMIT:
            known_threads.clear()
        task = Task.__new__(Task)
        task.number = next_number
        next_number += 1
        task = known_threads.setdefault(ident, task)
    return task


def know_asyncio(task_seen):
    """Distinguish asyncio tasks from now on; call `task_seen(loop, thread)` for each new one with a span."""
    global running, asking, running_loop, seen, told_loop, forgets_owner
    import asyncio.tasks  # not at the top: it takes longer than the rest of `import sglang_instrument`

    theirs = getattr(asyncio.tasks, "_current_tasks", None)
    if type(theirs) is dict:
        running, asking = theirs, None
    else:
        running, asking = {}, ask_asyncio(asyncio._get_running_loop)
    running_loop, seen, told_loop = asyncio._get_running_loop, task_seen, None
    all_tasks = getattr(asyncio.tasks, "_scheduled_tasks", getattr(asyncio.tasks, "_all_tasks", None))
    forgets_owner = getattr(all_tasks, "_remove", None)
    return theirs if asking is None else asking


def ignore_asyncio():
    """Stop reading asyncio tasks; return `running`, now an empty dictionary."""
    global running, asking, seen
    running, asking, seen = {}, None, None
    forget_gone()
    return running


def current(inherited):
    """Return the asyncio task that runs now on this thread; None outside of any."""
    return current_task(inherited)


def counted():
    """Return the task that runs now if a span counts its waiting, else None."""
    cdef Task task = current_task(None)
    return task if task is not None and task.counted_by else None


def look_up(inherited):
    """Return the task that runs now on this thread, and number a new one; None outside of any."""
    return look_up_task(inherited)


def known(owner):
    """Return our Task of an asyncio task; None if no span was seen in it."""
    return task_known_of(owner)


def thread_task(ident):
    """Return the Task of a thread: of its code outside of asyncio."""
    return thread_task_of(ident)


def forget_gone():
    """Free the entries of asyncio tasks that are gone; called while no event loop runs."""
    if owners_met:
        keep_living_owners()


def forget_tasks():
    """Start anew, as after a fork: forget all threads, number tasks from zero."""
    global next_number, told_loop
    known_threads.clear()
    forget_owners()
    next_number, told_loop = 0, None


def connect(dict pure):
    """Take what this module uses of recording/measure/tasks.py."""
    global ask_asyncio, reraise_if_programs_own, THREADS_LIMIT
    ask_asyncio, THREADS_LIMIT = pure["AskAsyncio"], pure["_THREADS_LIMIT"]
    reraise_if_programs_own = pure["reraise_if_programs_own"]
