"""Say how to install what an extra needs: by its packages, since our own name may be in no package index."""

import re
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import PathFinder
from shlex import quote
from typing import Final

_NAME: Final = "sglang-instrument"
_REQUIREMENT: Final = re.compile(r"\s*([\w.-]+)(?:\[([\w,.\s-]*)\])?")


def install_extra(extra: str) -> str:
    """Return the command that installs into this Python the packages of an extra that it lacks."""
    try:
        needed = dict.fromkeys(_requirements(extra))
    except metadata.PackageNotFoundError:  # found by PYTHONPATH, not installed
        return f"{_install()} '.[{extra}]' in a checkout of {_NAME}"
    missing = [requirement for requirement in needed if not _is_installed(requirement)] or needed
    return " ".join([_install(), *map(quote, missing)])


def _requirements(extra: str) -> Iterator[str]:
    """Yield the requirements of an extra, and of the extras that it names, without their markers."""
    for line in metadata.requires(_NAME) or ():
        requirement, _, marker = line.partition(";")
        if re.search(rf"extra\s*==\s*['\"]{extra}['\"]", marker) is None:
            continue
        name, extras = _parsed(requirement)
        if name == _NAME:
            for other in extras.split(","):
                yield from _requirements(other.strip())
        else:
            yield requirement.strip()


def _parsed(requirement: str) -> tuple[str, str]:
    parsed = _REQUIREMENT.match(requirement)
    return ("", "") if parsed is None else (parsed[1], parsed[2] or "")


def _is_installed(requirement: str) -> bool:
    try:
        metadata.version(_parsed(requirement)[0])
    except metadata.PackageNotFoundError:
        return False
    return True


def _install() -> str:
    python = quote(sys.executable)
    has_pip = PathFinder.find_spec("pip") is not None  # setuptools wraps importlib.util's, and warns
    return f"{python} -m pip install" if has_pip else f"uv pip install --python {python}"
