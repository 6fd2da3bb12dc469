"""Read one table of a TOML file strictly: refuse unknown keys and values of the wrong type."""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from sglang_instrument.errors import TableError

T = TypeVar("T")


class Entry:
    """A mapping from a TOML file; error messages name its place in the file.

    Args:
        where: the place, as messages show it: "patches/slime/0.3.toml: patch 3".
        values: the mapping.
        keys: the keys it may have.

    Raises:
        TableError: `values` is not a mapping, or has another key.
    """

    def __init__(self, where: str, values: object, keys: frozenset[str]) -> None:
        self.where = where
        if not isinstance(values, dict):
            raise self.error(f"must be a table, got {values!r}")
        self._values: dict[str, Any] = values
        for key in values:
            if key not in keys:
                close = difflib.get_close_matches(key, keys, 1)
                right = f"did you mean {close[0]!r}?" if close else f"the keys are {', '.join(sorted(keys))}"
                raise self.error(f"unknown key {key!r}; {right}")

    def error(self, message: str) -> TableError:
        """Return an error that names this place."""
        return TableError(f"{self.where}: {message}")

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def text(self, key: str) -> str | None:
        """Return a string, or None where the key is absent."""
        value = self._values.get(key)
        if value is not None and not (isinstance(value, str) and value.strip()):
            raise self.error(f"{key} must be a non-empty string, got {value!r}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a string or a list of strings as a tuple."""
        value = self._values.get(key, ())
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, (list, tuple)) or not all(isinstance(item, str) for item in listed):
            raise self.error(f"{key} must be a string or a list of strings, got {value!r}")
        return tuple(listed)

    def flag(self, key: str) -> bool | None:
        """Return a boolean, or None where the key is absent."""
        value = self._values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, got {value!r}")
        return value

    def seconds(self, key: str) -> float | None:
        """Return a number of seconds over 0, or None where the key is absent."""
        value = self._values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise self.error(f"{key} must be a number of seconds over 0, got {value!r}")
        return float(value)

    def choice(self, key: str, allowed: tuple[str, ...]) -> str | None:
        """Return one of the `allowed` strings, or None where the key is absent."""
        value = self._values.get(key)
        if value is not None and value not in allowed:
            raise self.error(f"{key} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
        return value

    def expressions(
        self, key: str, sets: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    ) -> Mapping[str, str]:
        """Return a mapping of names to expressions, {} where the key is absent.

        A string instead of a mapping names one of the `sets`.
        """
        value = self._values.get(key, {})
        if isinstance(value, str) and value in sets:
            return sets[value]
        if not isinstance(value, dict):
            named = f", or the name of a set in [fields]: {', '.join(sets)}" if sets else ""
            raise self.error(f"{key} must be a table of names and expressions{named}; got {value!r}")
        for name, expression in value.items():
            if not isinstance(expression, str):
                raise self.error(f"{key}.{name} must be a string holding an expression, got {expression!r}")
        return value

    def names(self, key: str) -> Sequence[str]:
        """Return the keys of a table, none if it is absent."""
        value = self._values.get(key, {})
        if not isinstance(value, dict):
            raise self.error(f"{key} must be a table, got {value!r}")
        return tuple(value)

    def below(self, key: str, keys: frozenset[str] | None = None) -> "Entry":
        """Return the table at `key`, empty if it is absent; without `keys`, it may have any."""
        value = self._values.get(key, {})
        return Entry(f"{self.where}: {key}", value, frozenset(self.names(key)) if keys is None else keys)

    def parsed(self, key: str, parse: Callable[[str], T]) -> T | None:
        """Return `parse(string)`, or None if the key is absent."""
        text = self.text(key)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            raise self.error(f"{key}: {error}") from None

    def entries(self, key: str, kind: str, keys: frozenset[str]) -> Iterator["Entry"]:
        """Yield the tables of a list; messages name each by `kind` and its number, from 1."""
        value = self._values.get(key, [])
        if not isinstance(value, list):
            raise self.error(f"{key} must be a list of tables, got {value!r}")
        for number, table in enumerate(value, 1):
            yield Entry(f"{self.where}: {kind} {number}", table, keys)
