"""Compare version numbers; suffixes do not matter, because a requirement only ranks variants."""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

Numbers = tuple[int, ...]

_COMPARISONS: Final[dict[str, Callable[[Numbers, Numbers], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_CLAUSE: Final = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\w+)*)\s*")
_PLACES: Final = 5


def numbers_of(version: str) -> Numbers:
    """Return "0.4.6.post5" as (0, 4, 6, 5, 0); drop local, development and pre-release marks."""
    release = re.split(r"\+|[._-]?(?:dev|rc|a|b)\d", version)[0]
    numbers = [int(number) for number in re.findall(r"\d+", release)][:_PLACES]
    return (*numbers, *[0] * (_PLACES - len(numbers)))


def is_release(version: str | None) -> bool:
    """Say whether a version names a release.

    A development version names the next release; tools write 0.0.0 if they find no tag.
    """
    return version is not None and ".dev" not in version and any(numbers_of(version))


@dataclass(frozen=True)
class Requirement:
    """A range of versions such as ">=0.5.1,<0.6"."""

    text: str

    @property
    def edges(self) -> frozenset[str]:
        """The versions at which `admits` may change its answer, and the next number after each."""
        named = [
            numbers_of(match[2]) for clause in self.text.split(",") if (match := _CLAUSE.fullmatch(clause))
        ]
        behind = [(*numbers[:-1], numbers[-1] + 1) for numbers in named]
        return frozenset(".".join(map(str, numbers)) for numbers in (*named, *behind))

    def __post_init__(self) -> None:
        for clause in self.text.split(","):
            if not _CLAUSE.fullmatch(clause):
                raise ValueError(f"expected comparisons like '>=0.5.1,<0.6', got {self.text!r}")

    def admits(self, version: str | None) -> bool:
        """Say whether `version` lies in the range; an unknown version (None) always does."""
        if version is None:
            return True
        matches = (_CLAUSE.fullmatch(clause) for clause in self.text.split(","))
        return all(
            _COMPARISONS[match[1]](numbers_of(version), numbers_of(match[2])) for match in matches if match
        )


@cache
def installed_version(package: str) -> str | None:
    """Return the version of an installed distribution, None if it is not installed."""
    from importlib import metadata  # takes 20 ms, and few tables need it

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
