# What each compiled module has: the state of the sources from which it was compiled, which the build defines (see
# stamps.py), and a way to let its types go by the name of the pure module beside it.

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

cdef list homes = []  # the names in use, which must not go


def call_by_home(kind, str module):
    """Call a type by the module that shows it, by which it is pickled, too."""
    home = f"{module}.{kind.__name__}".encode("ascii")
    homes.append(home)
    rename_type(kind, home)
