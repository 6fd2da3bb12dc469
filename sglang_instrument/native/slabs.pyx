# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, embedsignature=False, binding=False
"""Memory for what the rollout's thread makes and the encoder's thread lets go of.

Python's allocator hands a block that one core let go of to the other one, which reads in it where the next free
one is, and so waits for a line of its cache at each. Here blocks lie in slabs, one after the other: nothing is
read to make one, and what comes next is asked for ahead. A slab is used again when all that lay in it is gone.

What a reader of fields consists of lies in one piece, too.

A span or context that lives long keeps the 8 KiB around it. So there are 32 MiB of slabs and no more: ten thousand
requests in flight, or spans held until their step shows which requests were slow, would keep hundreds of
megabytes. Where no slab is left, a block is Python's own.
"""

include "stamp.pxi"

cdef extern from *:
    """
    #include <string.h>
    #include <sys/mman.h>

    enum { SLAB_BYTES = 1 << 13, SLAB_HEAD = 64, SLABS = 1 << 12, SLAB_AHEAD = 512 };

    typedef struct Slab {
        struct Slab *next;  /* of those that are empty */
        size_t made, gone;  /* blocks; how many were made is not known while it is the one in use */
    } Slab;

    /* All of this is changed by who has the GIL. */
    static char *slabs = NULL;  /* all that there ever are, one after the other; touched as they are needed */
    static size_t slabs_bytes = 0, slabs_begun = 0;
    static Slab *slab_in_use = NULL, *slabs_empty = NULL;
    static char *slab_at = NULL, *slab_end = NULL;
    static size_t slab_made = 0;

    static void slabs_map(void) {  /* once; untouched pages take no memory */
        size_t bytes = (size_t)SLABS * SLAB_BYTES;
        void *mapped;
        if (slabs != NULL) return;
        mapped = mmap(NULL, bytes + SLAB_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapped == MAP_FAILED) return;
        slabs = (char *)(((size_t)mapped + SLAB_BYTES - 1) & ~(size_t)(SLAB_BYTES - 1));
        slabs_bytes = bytes;
    }

    static void slab_emptied(Slab *slab) {
        slab->next = slabs_empty;
        slabs_empty = slab;
    }

    static int slab_begin(void) {
        char *fresh = (char *)slabs_empty;
        if (fresh != NULL) {
            slabs_empty = slabs_empty->next;
        } else if (slabs_begun * SLAB_BYTES < slabs_bytes) {
            fresh = slabs + slabs_begun++ * SLAB_BYTES;
        } else {
            return 0;
        }
        if (slab_in_use != NULL) {
            slab_in_use->made = slab_made;
            if (slab_in_use->gone == slab_made) slab_emptied(slab_in_use);
        }
        slab_in_use = (Slab *)fresh;
        slab_in_use->made = (size_t)-1;
        slab_in_use->gone = slab_made = 0;
        slab_at = fresh + SLAB_HEAD;
        slab_end = fresh + SLAB_BYTES;
        return 1;
    }

    static inline void *slab_take(size_t bytes) {
        char *block;
        bytes = (bytes + 15) & ~(size_t)15;
        if (bytes > (size_t)(slab_end - slab_at)) {
            if (bytes > SLAB_BYTES - SLAB_HEAD || !slab_begin()) return PyObject_Malloc(bytes);
        }
        block = slab_at;
        slab_at += bytes;
        slab_made++;
        __builtin_prefetch(block + SLAB_AHEAD, 1);
        __builtin_prefetch(block + SLAB_AHEAD + 64, 1);
        return block;
    }

    static void slab_give_back(void *block) {
        Slab *slab = (Slab *)((size_t)block & ~(size_t)(SLAB_BYTES - 1));
        if ((size_t)block - (size_t)slabs >= slabs_bytes) {
            PyObject_Free(block);
            return;
        }
        if (++slab->gone == slab->made) slab_emptied(slab);
    }

    static PyObject *slab_alloc(PyTypeObject *type, Py_ssize_t items) {
        PyObject *made = (PyObject *)slab_take((size_t)type->tp_basicsize);
        (void)items;
        if (made == NULL) return PyErr_NoMemory();
        memset(made, 0, (size_t)type->tp_basicsize);
        return PyObject_Init(made, type);
    }

    static void slab_lie_in(PyObject *kind) {
        PyTypeObject *changing = (PyTypeObject *)kind;
        changing->tp_alloc = slab_alloc;
        changing->tp_free = slab_give_back;
        PyType_Modified(changing);
    }

    /* Before an object that the collector may see lie two of its pointers: PyGC_Head. While they are zero it does
       not see it. Objects here do not count towards its next search. */
    enum { SLAB_SEEN = 2 * sizeof(void *) };

    static PyObject *slab_alloc_seen(PyTypeObject *type, Py_ssize_t items) {
        char *made = (char *)slab_take((size_t)type->tp_basicsize + SLAB_SEEN);
        (void)items;
        if (made == NULL) return PyErr_NoMemory();
        memset(made, 0, (size_t)type->tp_basicsize + SLAB_SEEN);
        return PyObject_Init((PyObject *)(made + SLAB_SEEN), type);
    }

    static void slab_give_back_seen(void *made) {
        slab_give_back((char *)made - SLAB_SEEN);
    }

    static void slab_lie_in_seen(PyObject *kind) {
        PyTypeObject *changing = (PyTypeObject *)kind;
        changing->tp_alloc = slab_alloc_seen;
        changing->tp_free = slab_give_back_seen;
        PyType_Modified(changing);
    }
    """
    void slabs_map() noexcept
    void slab_lie_in(object kind) noexcept
    void slab_lie_in_seen(object kind) noexcept
    void *slab_take(size_t bytes) noexcept
    void slab_give_back(void *block) noexcept


slabs_map()


cdef void lie_in_slabs(object kind) noexcept:
    slab_lie_in(kind)


cdef void be_seen_in_slabs(object kind) noexcept:
    slab_lie_in_seen(kind)


cdef void *take_block(size_t bytes) noexcept:
    return slab_take(bytes)


cdef void give_block_back(void *block) noexcept:
    slab_give_back(block)
