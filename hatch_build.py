"""Compile the .pyx files in place: for wheels, editable installs, or as `python hatch_build.py`.

Modules that are up to date are not built again. Without a compiler or Cython, or with
SGLANG_INSTRUMENT_NATIVE=0, nothing is built, and the package is pure Python. With SGLANG_INSTRUMENT_NATIVE=1,
a build that fails is an error.
"""

import fcntl
import os
import re
import runpy
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
NATIVE = ROOT / "sglang_instrument/native"
STAMPS = runpy.run_path(str(NATIVE / "stamps.py"))
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
ASKED = os.environ.get("SGLANG_INSTRUMENT_NATIVE", "")


class NativeBuildHook(BuildHookInterface):
    """Put the compiled modules into the wheel; an editable install uses those in the tree."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build missing modules, and add them to the wheel."""
        if self.target_name != "wheel" or ASKED == "0":
            return
        try:
            built = build()
        except Exception as error:
            if ASKED == "1":
                raise
            self.app.display_warning(f"sglang-instrument stays pure Python: {in_one_line(error)}")
            return
        if version != "editable":
            for path in built:
                build_data["force_include"][str(path)] = str(path.relative_to(ROOT))
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


def build() -> list[Path]:
    """Compile the modules that are not up to date, beside their sources; return the files of all modules.

    Raises:
        Exception: Cython, setuptools, or a compiler are missing, or the sources do not compile.
    """
    with only_one_builds():
        stale = [module for module in STAMPS["PARTS"].values() if not is_fresh(module)]
        if stale:
            with tempfile.TemporaryDirectory(dir=NATIVE, prefix=".build-") as folder:
                compile_into(Path(folder), stale)
        return [file_of(module) for module in STAMPS["PARTS"].values()]


def file_of(module: str) -> Path:
    """Return the path of a module's compiled file for this Python."""
    return ROOT / f"{module.replace('.', '/')}{SUFFIX}"


def is_fresh(module: str) -> bool:
    """Return whether a module was built from its current sources."""
    path = file_of(module)
    return path.exists() and STAMPS["stamp_of"](str(ROOT), module).encode() in path.read_bytes()


def compile_into(folder: Path, modules: list[str]) -> None:
    """Compile modules in a folder, and rename each into its place: other processes may be importing it."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    try_the_compiler(folder)
    extensions = [
        Extension(
            module,
            [str(ROOT / f"{module.replace('.', '/')}.pyx")],
            define_macros=[("SGLANG_INSTRUMENT_STAMP", f'"{STAMPS["stamp_of"](str(ROOT), module)}"')],
            extra_compile_args=["-O2", "-g0", "-fvisibility=hidden"],
        )
        for module in modules
    ]
    compiled = cythonize(extensions, build_dir=str(folder), include_path=[str(ROOT)], quiet=True, force=True)
    for extension in compiled:
        allow_missing_tracebacks(Path(extension.sources[0]))
    command = build_ext(Distribution({"name": "sglang-instrument", "ext_modules": compiled}))
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "temp")
    command.ensure_finalized()
    command.run()
    for module in modules:
        Path(command.get_ext_fullpath(module)).replace(file_of(module))


def try_the_compiler(folder: Path) -> None:
    """Compile an empty extension: Cython would work for seconds before a compiler or Python.h is missed.

    Raises:
        Exception: The compiler fails.
    """
    from setuptools._distutils.ccompiler import new_compiler  # Python 3.12 has no distutils of its own
    from setuptools._distutils.sysconfig import customize_compiler

    source = folder / "empty.c"
    source.write_text("#include <Python.h>\n")
    compiler = new_compiler()
    customize_compiler(compiler)
    compiler.compile([str(source)], str(folder), include_dirs=[sysconfig.get_path("include")])


def allow_missing_tracebacks(path: Path) -> None:
    """Change Cython's C code so that an `except` also handles an exception that has no traceback.

    Without memory for a traceback, an exception has none; then `__Pyx_DECREF` of it dereferences NULL, and
    `__Pyx_XDECREF` does not. Cython has no option for this.
    """
    code, count = re.subn(
        r"__Pyx_DECREF\((__pyx_t_\d+)\); \1 = 0;", r"__Pyx_XDECREF(\1); \1 = 0;", path.read_text()
    )
    if "__Pyx_GetException(&" in code and not count:
        raise RuntimeError(f"this version of Cython generates unknown code for `except`: {path.name}")
    path.write_text(code)


@contextmanager
def only_one_builds() -> Iterator[None]:
    """Lock the tree for one build: several environments may be installed at the same time."""
    with (NATIVE / ".build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def in_one_line(error: Exception) -> str:
    """Return an error's type and text in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


if __name__ == "__main__":
    try:
        sys.stdout.write("".join(f"{path}\n" for path in build()))
    except Exception as error:
        sys.exit(f"nothing was built, sglang-instrument stays pure Python: {in_one_line(error)}")
