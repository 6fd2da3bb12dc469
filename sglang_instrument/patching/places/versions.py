"""Compare versions. A requirement only ranks variants, so numbers are enough and suffixes do not matter."""

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
    """Return "0.4.6.post5" as (0, 4, 6, 5, 0); local, development and pre-release marks are left out."""
    release = re.split(r"\+|[._-]?(?:dev|rc|a|b)\d", version)[0]
    numbers = [int(number) for number in re.findall(r"\d+", release)][:_PLACES]
    return (*numbers, *[0] * (_PLACES - len(numbers)))


def is_release(version: str | None) -> bool:
    """Say whether a version tells what it has.

    One in development says which release comes next; 0.0.0 is what tools make up where they see no tag.
    """
    return version is not None and ".dev" not in version and any(numbers_of(version))


@dataclass(frozen=True)
class Requirement:
    """A range of versions such as ">=0.5.1,<0.6"."""

    text: str

    @property
    def edges(self) -> frozenset[str]:
        """The versions at which the answer may change, and one right behind each."""
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
        """Say whether `version` lies in the range; a version that nobody knows always does."""
        if version is None:
            return True
        matches = (_CLAUSE.fullmatch(clause) for clause in self.text.split(","))
        return all(
            _COMPARISONS[match[1]](numbers_of(version), numbers_of(match[2])) for match in matches if match
        )


@cache
def installed_version(package: str) -> str | None:
    """Return the version of an installed distribution; None where there is none, as beside a source tree."""
    from importlib import metadata  # costs 20 ms, and few tables ask

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
