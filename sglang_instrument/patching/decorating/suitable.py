"""Say whether a decorated function can be rewritten, before anything has to be."""

import os
from types import CodeType, FunctionType
from typing import Final
from weakref import ref

from sglang_instrument.patching.decorating.notes import Decoration
from sglang_instrument.patching.decorating.rebuilt import is_rebuilt

# Flags of code; the module inspect has them, too, and takes longer to import than all of this package.
_VARARGS: Final = 4
_VARKEYWORDS: Final = 8
_GENERATORS: Final = 0x20 | 0x200  # CO_GENERATOR, CO_ASYNC_GENERATOR

_answers: dict[int, "tuple[ref[CodeType], dict[Decoration, bool]]"] = {}


def is_suitable(function: FunctionType, code: CodeType, decoration: Decoration) -> bool:
    """Return whether a function's calls can be measured by rewriting its code.

    The answer is kept for each code, because functions inside others are decorated again at each call.

    Raises:
        TableError: An expression of the decoration is invalid.
    """
    known = _answers.get(id(code))
    if known is None or known[0]() is not code:
        place = id(code)
        known = _answers[place] = (ref(code, lambda _: _answers.pop(place, None)), {})
    answers = known[1]
    if decoration not in answers:
        answers[decoration] = _is_suitable(function, code, decoration)
    return answers[decoration]


def _is_suitable(function: FunctionType, code: CodeType, decoration: Decoration) -> bool:
    if code.co_name == "<lambda>" or not _has_source(function, code) or is_rebuilt(function, code):
        return False
    is_generator = bool(code.co_flags & _GENERATORS)
    if not (decoration.reads or is_generator):
        return True
    # Imported here: they import the field compiler, which a process without fields does not need.
    from sglang_instrument.patching.decorating.regions import region_of_call
    from sglang_instrument.patching.places.bindings import may_show_locals
    from sglang_instrument.patching.probes.probe import make_probe

    probe = make_probe(region_of_call(function, decoration))
    parameters = code.co_varnames[: _parameters(code)]
    if not {*probe.enter_locals, *probe.exit_locals}.issubset(parameters):
        return False  # the signature is not the function's own: a decorator below gave it
    hands_over = probe.exit_locals or probe.wants_result or probe.wants_items
    return not (hands_over and may_show_locals(code, function.__globals__))


def _parameters(code: CodeType) -> int:
    stars = bool(code.co_flags & _VARARGS) + bool(code.co_flags & _VARKEYWORDS)
    return code.co_argcount + code.co_kwonlyargcount + stars


def _has_source(function: FunctionType, code: CodeType) -> bool:
    filename = code.co_filename
    if os.path.isfile(filename):  # noqa: PTH113 - importing pathlib takes longer
        return True
    import linecache  # of a notebook's cell or a zipped package

    return bool(linecache.getlines(filename, function.__globals__))
