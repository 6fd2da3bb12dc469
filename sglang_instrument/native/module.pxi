# Included by each compiled module: the stamp of the sources that it was compiled from, which the build defines (see
# stamps.py), and a function that gives its types the name of the pure module beside it.

cdef extern from *:
    """
    #ifndef SGLANG_INSTRUMENT_STAMP
    #define SGLANG_INSTRUMENT_STAMP "compiled by hand"
    #endif
    static void sglang_instrument_rename(PyObject *type, const char *name) {
        ((PyTypeObject *)type)->tp_name = name;
    }
    """
    const char* SGLANG_INSTRUMENT_STAMP
    void rename_type "sglang_instrument_rename"(object, const char *) noexcept

STAMP = SGLANG_INSTRUMENT_STAMP.decode("ascii")

cdef list type_names = []  # keeps them alive: the types point into them


def name_after_public_module(kind, str module):
    """Name a type after the public module that exports it; it is pickled by that name."""
    name = f"{module}.{kind.__name__}".encode("ascii")
    type_names.append(name)
    rename_type(kind, name)
