"""Stands in for sgl_kernel, which needs a GPU: every name can be imported, and raises when it is called."""

import importlib.abc
import importlib.machinery
import sys

__version__ = "99.0.0"


class Kernel:
    def __init__(self, name):
        self._name = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Kernel(f"{self._name}.{name}")

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(f"no GPU: sgl_kernel.{self._name}")


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Kernel(name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds any module below sgl_kernel."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname.startswith("sgl_kernel."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__getattr__ = __getattr__
        module.__path__ = []


sys.meta_path.append(Finder())
