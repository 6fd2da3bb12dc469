# What waits for the disk's thread. Lines for a file that is open are appended without the GIL: to get it twice
# for each of them stops whoever works, and waits for him.

from cpython.ref cimport Py_DECREF, Py_INCREF

cdef extern from "pthread.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *, void *)
    int pthread_mutex_lock(pthread_mutex_t *)
    int pthread_mutex_unlock(pthread_mutex_t *)
    int pthread_cond_init(pthread_cond_t *, void *)
    int pthread_cond_wait(pthread_cond_t *, pthread_mutex_t *)
    int pthread_cond_signal(pthread_cond_t *)

cdef enum:
    MOST_STRAIGHT = 16  # files; files.py has no more of them open


cdef struct Job:
    Job *next
    PyObject *what  # the lines, or what is to be called; owned
    PyObject *scope  # whose lines they are, or NULL; owned
    const char *data  # in the memory of `what`
    Py_ssize_t size
    Py_ssize_t done  # bytes that were appended already
    Py_ssize_t records


cdef struct Open:
    PyObject *scope  # owned; NULL: there is none
    int descriptor
    dev_t device
    ino_t inode
    long long records  # appended since Python was told last
    long long used  # the last append, by number


@cython.final
cdef class Jobs:
    """What waits for the disk's thread, in order; see recording/disk.py.

    What stands above `open` is guarded by a lock that nobody holds for longer than it takes to link a job: who
    has the GIL may wait for the lock, and who has the lock waits for nothing. What stands below is the disk
    thread's own. The references that a job has are let go by whoever has the GIL anyway.
    """

    cdef object files
    cdef Py_ssize_t limit
    cdef pthread_mutex_t lock
    cdef pthread_cond_t put_one
    cdef Job *first
    cdef Job *last
    cdef Job *finished
    cdef Py_ssize_t bytes_waiting
    cdef long long total  # records that went straight to their files
    cdef bint ended
    cdef Open[MOST_STRAIGHT] open
    cdef long long appends

    def __cinit__(self):
        pthread_mutex_init(&self.lock, NULL)
        pthread_cond_init(&self.put_one, NULL)

    def __init__(self, files, Py_ssize_t limit_bytes):
        self.files, self.limit = files, limit_bytes
        files.straight = self

    def __dealloc__(self):
        cdef int at
        let_jobs_go(self.first)
        let_jobs_go(self.finished)
        for at in range(MOST_STRAIGHT):
            if self.open[at].scope != NULL:
                Py_DECREF(<object>self.open[at].scope)

    def append(self, scope, lines, Py_ssize_t records):
        """Have lines appended to the scope's file; return False if too much waits already."""
        cdef Job *job
        self.let_finished_go()
        if self.bytes_waiting_now() + len(lines) > self.limit:
            return False
        if type(lines) is not Block:
            lines = bytes(lines)  # the same, if it is bytes
        job = job_of(lines)
        job.scope, job.records = <PyObject *>scope, records
        Py_INCREF(scope)
        if type(lines) is Block:
            job.data, job.size = (<Block>lines).text.data, (<Block>lines).text.size
        else:
            job.data, job.size = PyBytes_AS_STRING(lines), PyBytes_GET_SIZE(lines)
        self.link(job)
        return True

    def put(self, what):
        """Have `what` called."""
        self.let_finished_go()
        self.link(job_of(what))

    def do_next(self):
        """Do the next job that needs Python, and before it what does not."""
        cdef Job *job
        with nogil:
            job = self.next_for_python()
        try:
            if job.scope == NULL:
                (<object>job.what)()
            else:
                self.files.write(<object>job.scope, <object>job.what, job.records, job.done)
        finally:
            pthread_mutex_lock(&self.lock)
            self.finish(job)
            pthread_mutex_unlock(&self.lock)
            self.let_finished_go()

    def opened(self, scope, int descriptor, inode):
        """Know that the scope's file is open; what is put for it from now on goes straight to it."""
        cdef int at
        for at in range(MOST_STRAIGHT):
            if self.open[at].scope == NULL:
                self.open[at].device, self.open[at].inode = inode[0], inode[1]
                self.open[at].descriptor, self.open[at].records, self.open[at].used = descriptor, 0, 0
                self.open[at].scope = <PyObject *>scope
                Py_INCREF(scope)
                return

    def closed(self, scope):
        """Know that the scope's file is not open any more."""
        cdef Open *file = self.file_of(<PyObject *>scope)
        if file != NULL:
            file.scope = NULL
            Py_DECREF(scope)

    def take_appended(self):
        """Return scopes to whose files something went straight, the last used last, with how many records."""
        cdef int at
        cdef list appended = []
        for at in range(MOST_STRAIGHT):
            if self.open[at].scope != NULL and self.open[at].used:
                appended.append((self.open[at].used, <object>self.open[at].scope, self.open[at].records))
                self.open[at].used = self.open[at].records = 0
        return [(scope, records) for _, scope, records in sorted(appended)]

    @property
    def records(self):
        """How many records went straight to their files."""
        cdef long long total
        pthread_mutex_lock(&self.lock)
        total = self.total
        pthread_mutex_unlock(&self.lock)
        return total

    def end(self):
        """Let go of what nobody will do any more: what it refers to may refer to this, which nobody sees."""
        cdef Job *left
        pthread_mutex_lock(&self.lock)
        left, self.first, self.last, self.ended = self.first, NULL, NULL, True
        pthread_mutex_unlock(&self.lock)
        let_jobs_go(left)

    cdef Job *next_for_python(self) noexcept nogil:
        """Append what can be appended until there is something that cannot; return that."""
        cdef Job *job
        pthread_mutex_lock(&self.lock)
        while True:
            while self.first == NULL:
                pthread_cond_wait(&self.put_one, &self.lock)
            job = self.first
            self.first = job.next
            if self.first == NULL:
                self.last = NULL
            pthread_mutex_unlock(&self.lock)
            if job.scope == NULL or not self.append_straight(job):
                return job
            pthread_mutex_lock(&self.lock)
            self.total += job.records
            self.finish(job)

    cdef bint append_straight(self, Job *job) noexcept nogil:
        """Append lines to a file that is open; return False if that cannot be done, or not all of it."""
        cdef Open *file = self.file_of(job.scope)
        cdef Py_ssize_t written
        if file == NULL:
            return False
        while job.done < job.size:
            written = append_some(
                file.descriptor, file.device, file.inode, job.data + job.done, job.size - job.done
            )
            if written < 0:
                return False
            job.done += written
        self.appends += 1
        file.records += job.records
        file.used = self.appends
        return True

    cdef Open *file_of(self, PyObject *scope) noexcept nogil:
        cdef int at
        for at in range(MOST_STRAIGHT):
            if self.open[at].scope == scope:
                return &self.open[at]
        return NULL

    cdef void link(self, Job *job) noexcept:
        pthread_mutex_lock(&self.lock)
        self.bytes_waiting += job.size
        if self.ended:
            self.finish(job)
        elif self.last == NULL:
            self.first = self.last = job
        else:
            self.last.next = job
            self.last = job
        pthread_mutex_unlock(&self.lock)
        pthread_cond_signal(&self.put_one)  # now: who is woken wants the lock
        if self.ended:  # nobody else will, and what it refers to may refer to this
            self.let_finished_go()

    cdef void finish(self, Job *job) noexcept nogil:
        """Keep a job that is done until its references are let go; who calls holds the lock."""
        self.bytes_waiting -= job.size
        job.next = self.finished
        self.finished = job

    cdef Py_ssize_t bytes_waiting_now(self) noexcept:
        cdef Py_ssize_t now
        pthread_mutex_lock(&self.lock)
        now = self.bytes_waiting
        pthread_mutex_unlock(&self.lock)
        return now

    cdef void let_finished_go(self) noexcept:
        cdef Job *finished
        pthread_mutex_lock(&self.lock)
        finished, self.finished = self.finished, NULL
        pthread_mutex_unlock(&self.lock)
        let_jobs_go(finished)


cdef Job *job_of(object what) except NULL:
    cdef Job *job = <Job *>PyMem_RawCalloc(1, sizeof(Job))
    if job == NULL:
        raise MemoryError
    job.what = <PyObject *>what
    Py_INCREF(what)
    return job


cdef void let_jobs_go(Job *job) noexcept:
    """Let go of jobs, and of what they refer to."""
    cdef Job *next
    while job != NULL:
        next = job.next
        Py_DECREF(<object>job.what)
        if job.scope != NULL:
            Py_DECREF(<object>job.scope)
        PyMem_RawFree(job)
        job = next
