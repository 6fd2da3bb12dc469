"""The detectors, one file each. Every `Detector` and `Joiner` of a module in this package is one of them."""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import Final

from sglang_instrument.analysis.verdict.evidence.detector import Detector, Joiner, NamedCause


def _defined() -> Iterator[Detector | Joiner]:
    modules = (info.name for info in walk_packages(__path__, f"{__name__}.") if not info.ispkg)
    for module in sorted(modules):
        for value in vars(import_module(module)).values():
            if isinstance(value, Detector | Joiner) and value.name == module:
                yield value


_ALL: Final = tuple(_defined())
DETECTORS: Final = tuple(known for known in _ALL if isinstance(known, Detector))
JOINERS: Final = tuple(known for known in _ALL if isinstance(known, Joiner))
_ORDERED: Final = sorted(DETECTORS, key=lambda known: known.precedence)
#: Every cause by its name, in the order of the documentation: as detectors look.
CAUSES: Final[dict[str, NamedCause]] = {
    cause.name: cause
    for causes in (*(known.causes for known in _ORDERED), *(known.causes for known in JOINERS))
    for cause in causes
}
