# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, embedsignature=False, binding=False
"""Memory for what the rollout's thread makes and the encoder's thread lets go of.

Python's allocator hands a block that one core let go of to the other one, which reads in it where the next free
one is, and so waits for a line of its cache at each. Here blocks lie in slabs, one after the other: nothing is
read to make one, and what comes next is asked for ahead. A slab is used again when all that lay in it is gone.
"""

include "stamp.pxi"

cdef extern from *:
    """
    #include <stdlib.h>
    #include <string.h>

    /* Small, since one block that lives long keeps all of its slab. */
    enum { SLAB_BYTES = 1 << 13, SLAB_HEAD = 64, SLAB_TAIL = 32, SLABS_KEPT = 512, SLAB_AHEAD = 512 };

    typedef struct Slab {
        struct Slab *next;  /* of those that are kept */
        size_t made, gone;  /* blocks; how many were made is not known while it is the one in use */
    } Slab;

    /* All of this is changed by who has the GIL. */
    static Slab *slab_in_use = NULL, *slabs_kept = NULL;
    static char *slab_at = NULL, *slab_end = NULL;
    static size_t slab_made = 0, slab_count = 0;

    static void slab_emptied(Slab *slab) {
        if (slab_count == SLABS_KEPT) {
            free(slab);
            return;
        }
        slab->next = slabs_kept;
        slabs_kept = slab;
        slab_count++;
    }

    static int slab_begin(void) {
        void *fresh = slabs_kept;
        if (fresh != NULL) {
            slabs_kept = slabs_kept->next;
            slab_count--;
        } else if (posix_memalign(&fresh, SLAB_BYTES, SLAB_BYTES - SLAB_TAIL) != 0) {
            return 0;  /* with malloc's own words in the tail, the next one lies right behind */
        }
        if (slab_in_use != NULL) {
            slab_in_use->made = slab_made;
            if (slab_in_use->gone == slab_made) slab_emptied(slab_in_use);
        }
        slab_in_use = (Slab *)fresh;
        slab_in_use->made = (size_t)-1;
        slab_in_use->gone = slab_made = 0;
        slab_at = (char *)fresh + SLAB_HEAD;
        slab_end = (char *)fresh + SLAB_BYTES - SLAB_TAIL;
        return 1;
    }

    static inline void *slab_take(size_t bytes) {
        char *block;
        bytes = (bytes + 15) & ~(size_t)15;
        if (bytes > (size_t)(slab_end - slab_at)) {
            if (bytes > SLAB_BYTES - SLAB_HEAD - SLAB_TAIL || !slab_begin()) return NULL;
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
    """
    void slab_lie_in(object kind) noexcept
    void *slab_take(size_t bytes) noexcept
    void slab_give_back(void *block) noexcept


cdef void lie_in_slabs(object kind) noexcept:
    slab_lie_in(kind)


cdef void *take(size_t bytes) noexcept:
    return slab_take(bytes)


cdef void give_back(void *block) noexcept:
    slab_give_back(block)
