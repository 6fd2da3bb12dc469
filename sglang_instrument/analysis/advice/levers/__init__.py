"""The levers, one file each. Every `Lever` of a module below this package is one of them."""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import Final

from sglang_instrument.analysis.advice.evidence.lever import Lever


def _defined() -> Iterator[Lever]:
    modules = (info.name for info in walk_packages(__path__, f"{__name__}.") if not info.ispkg)
    for module in sorted(modules):
        for value in vars(import_module(module)).values():
            if isinstance(value, Lever) and value.module == module:
                yield value


LEVERS: Final = tuple(_defined())
