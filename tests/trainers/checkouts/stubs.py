"""Let a trainer's checkout be imported without the packages that its rollout does not need.

`stand_in_for(folder)` gives each package that code below the folder imports and that is not installed a
module of which every name can be imported, called and inherited.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import types
from pathlib import Path

REPLACED: set[str] = set()


class Anything:
    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __getitem__(self, key):
        return self

    def __iter__(self):
        return iter(())

    def __or__(self, other):
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases):
        return (object,)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return False


class Replacement(types.ModuleType):
    __version__ = "0.3.2"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The last finder: what no other has found is replaced, if code of the checkout imports it."""

    def __init__(self, folder):
        self.folder = str(folder)
        self.checked_out = {path.name.removesuffix(".py") for path in Path(folder).iterdir()}

    def find_spec(self, name, path=None, target=None):
        package = name.partition(".")[0]
        is_inside = type(sys.modules.get(name.rpartition(".")[0])) is Replacement
        if not is_inside and (package in self.checked_out or not self._is_asked_by_checkout()):
            return None
        REPLACED.add(package)
        return importlib.machinery.ModuleSpec(name, self, origin="stand-in", is_package=True)

    def _is_asked_by_checkout(self):
        frame = sys._getframe(2)
        while frame is not None and ("importlib" in frame.f_code.co_filename or is_ours(frame)):
            frame = frame.f_back
        return frame is not None and frame.f_code.co_filename.startswith(self.folder)

    def create_module(self, spec):
        return Replacement(spec.name)

    def exec_module(self, module):
        module.__path__ = []


def is_ours(frame):
    return "sglang_instrument" in frame.f_globals.get("__name__", "")


def stand_in_for(folder):
    """Put the checkout on `sys.path`, and replace what it imports and what is not installed."""
    sys.path.insert(0, str(folder))
    sys.meta_path.append(Finder(folder))


def end():
    """Write the log and leave, without waiting for loops and threads that the trainer never ends."""
    import sglang_instrument

    sys.stdout.flush()
    sglang_instrument.flush()
    os._exit(0)
