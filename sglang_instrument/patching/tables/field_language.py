"""Parse the field language of patch tables.

FIELD  = VALUE {"|" VALUE}                      the first that resolves
VALUE  = PATH ["in" PATH] | FUNCTION "(" PATH ")" | 'text' | 3 | true | false
PATH   = ROOT {.attribute | ["key"] | [int] | [local.attribute] | [*] | [?attribute] | [?local.attribute]}
         [{ NEW: OLD, ... }]
ROOT   = a local | local.NAME | result | item | inside.EVENT | before.EVENT | last.EVENT | bound.ID
       | latest.step | modules["name"]
"""

import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, Literal

from sglang_instrument.errors import TableError
from sglang_instrument.patching.tables.field_functions import NAMES, NEEDS_CONTEXT, measure_named

#: Roots that are not locals: the returned value; a generator's item; the regions that finished inside this
#: one; those that finished before it in the enclosing region; the last of an event in this process; the bound
#: ids; the newest step of this process; the imported modules.
RESULT: Final = "result"
ITEM: Final = "item"
INSIDE: Final = "inside"
BEFORE: Final = "before"
LAST: Final = "last"
BOUND: Final = "bound"
LATEST: Final = "latest"
MODULES: Final = "modules"
#: Prefix for a local that has the name of a root: `local.result`.
_LOCAL: Final = "local"

#: Ids that a region may bind; everything that runs inside the region inherits request_id and turn.
BINDABLE: Final = ("step", "worker", "validate", "request_id", "turn", "role", "agent", "parent_request")

#: When a field is read. At entry nothing is returned or finished yet; only a generator yields items.
Moment = Literal["enter", "exit", "item"]
_ROOTS: Final[dict[Moment, frozenset[str]]] = {
    "enter": frozenset({BEFORE, LAST, BOUND, LATEST, MODULES}),
    "exit": frozenset({RESULT, INSIDE}),
    "item": frozenset({ITEM, INSIDE}),
}


@dataclass(frozen=True)
class PathStep:
    """One step of a path.

    A step reads an attribute, or a key or index; `each` reads every element, or those whose attribute `name`
    is true; `pick` makes a record of some fields, with `names` as (new name, old name). The path `of`, if
    given, leads to the key, or to the collection whose true elements say which ones to read.
    """

    kind: Literal["attribute", "key", "each", "pick"]
    name: str | int = ""
    names: tuple[tuple[str, str], ...] = ()
    of: "Path | None" = None


@dataclass(frozen=True)
class Path:
    """Begin at a root and follow the steps; `function` measures the value at the end.

    `registry` leads to the names that the value may have. `is_local`: the root is a local, even if it has the
    name of a reserved root.
    """

    root: str
    steps: tuple[PathStep, ...] = ()
    function: str | None = None
    is_local: bool = False
    registry: "Path | None" = None

    def locals(self, reserved: frozenset[str]) -> Iterator[str]:
        """Yield the locals at which the path, its keys and its registry begin."""
        if self.registry is not None:
            yield from self.registry.locals(reserved)
        if self.is_local or self.root not in reserved:
            yield self.root
        for step in self.steps:
            if step.of is not None:
                yield from step.of.locals(reserved)


@dataclass(frozen=True)
class Constant:
    """A constant value."""

    value: str | int | bool


@dataclass(frozen=True)
class Expression:
    """A parsed field: the first alternative that can be read gives the value."""

    text: str
    alternatives: tuple[Path | Constant, ...]
    moment: Moment = "exit"

    @property
    def paths(self) -> tuple[Path, ...]:
        """The alternatives that are not constants."""
        return tuple(value for value in self.alternatives if isinstance(value, Path))

    @property
    def roots(self) -> frozenset[str]:
        """The reserved roots that the field reads."""
        return frozenset(path.root for path in self.paths if self.is_root(path))

    @property
    def locals(self) -> tuple[str, ...]:
        """The locals that the field reads, each once, in the order of the text."""
        reserved = _ROOTS[self.moment]
        return tuple(dict.fromkeys(name for path in self.paths for name in path.locals(reserved)))

    def is_root(self, path: Path) -> bool:
        """Say whether a path begins at a reserved root."""
        return not path.is_local and path.root in _ROOTS[self.moment]

    @property
    def events(self) -> frozenset[str]:
        """The events whose finished regions the field reads."""
        return self._events_at(INSIDE)

    @property
    def last_events(self) -> frozenset[str]:
        """The events of which the field reads the last finished region of this process."""
        return self._events_at(LAST)

    def _events_at(self, root: str) -> frozenset[str]:
        named = (path.steps[0].name for path in self.paths if path.root == root and self.is_root(path))
        return frozenset(str(name) for name in named)

    @property
    def survives_error(self) -> bool:
        """Whether the field can be read after an exception: then locals may be left from an earlier turn."""
        return not self.locals and self.roots <= {INSIDE}


def parse(text: object, moment: Moment = "exit") -> Expression:
    """Parse one field expression.

    Args:
        text: The expression as written in a table.
        moment: When the field is read. Only `_ROOTS[moment]` are roots then; the names of all other roots
            are locals: `result` at "enter", for example.

    Raises:
        TableError: The text is not in the language; the message quotes it and says what is expected.
    """
    if not isinstance(text, str):
        raise TableError(f"a field must be an expression in a string, got {text!r}")
    return _ExpressionParser(text, moment).expression()


#: Cached: a process may read a table, or install, several times.
parsed: Final = cache(parse)

#: What must follow a root that has no value of its own.
_AFTER_ROOT: Final = {
    INSIDE: "inside.EVENT, the finished regions of an event",
    BEFORE: "before.EVENT, the regions of an event that finished before",
    LAST: "last.EVENT, the fields of the last finished region of an event",
    BOUND: f"bound.ID, one of {', '.join(BINDABLE)}",
    LATEST: "latest.step, the newest step that this process has bound",
}
#: The names that may follow such a root; any name may follow a root that is not here.
_NAMES_AFTER: Final = {BOUND: frozenset(BINDABLE), LATEST: frozenset({"step"})}
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<name>[^\W\d]\w*)|(?P<integer>-?[0-9]+)|(?P<string>"[^"]*"|'[^']*')|(?P<sign>[.\[\]{}()*?:,|]))"""
)
_END: Final = ("end", "the end")


class _ExpressionParser:
    """Parse the tokens of one expression, left to right, with one token of look-ahead."""

    def __init__(self, text: str, moment: Moment) -> None:
        self.text = text
        self.moment: Moment = moment
        self.tokens = self._split()
        self.kind, self.word = next(self.tokens)

    def expression(self) -> Expression:
        alternatives = [self._value()]
        while self._take("|"):
            alternatives.append(self._value())
        if (self.kind, self.word) != _END:
            raise self._error("'|' or the end")
        return Expression(self.text, tuple(alternatives), self.moment)

    def _value(self) -> Path | Constant:
        kind, word = self.kind, self.word
        if kind == "string":
            self._advance()
            return Constant(word[1:-1])
        if kind == "integer":
            self._advance()
            return Constant(int(word))
        if kind != "name":
            raise self._error("a name, a function, a number or a 'text'")
        self._advance()
        if word in ("true", "false"):
            return Constant(word == "true")
        return self._call(word) if self._take("(") else self._known(self._path(word))

    def _known(self, path: Path) -> Path:
        """Return the path, with its registry if `in` follows."""
        if (self.kind, self.word) != ("name", "in"):
            return path
        self._advance()
        return replace(path, registry=self._path(self._name("the local that holds the known names")))

    def _call(self, function: str) -> Path:
        if function not in NEEDS_CONTEXT and measure_named(function) is None:
            raise TableError(
                f"expression {self.text!r}: no function {function!r}; the functions are {', '.join(NAMES)}"
            )
        root = self.word
        if self.kind != "name":
            raise self._error("a name")
        self._advance()
        path = self._path(root)
        if not self._take(")"):
            raise self._error("')'")
        return replace(path, function=function)

    def _path(self, root: str) -> Path:
        if keyword.iskeyword(root):
            raise TableError(f"expression {self.text!r}: {root!r} is a Python keyword, not a local")
        steps = []
        while self.word in (".", "["):
            steps.append(self._attribute() if self._take(".") else self._bracket())
        if self._take("{"):
            steps.append(self._pick())
        wanted = _AFTER_ROOT.get(root) if root in _ROOTS[self.moment] else None
        named = steps[0].name if steps and steps[0].kind == "attribute" else None
        if wanted is not None and (named is None or named not in _NAMES_AFTER.get(root, {named})):
            raise TableError(f"expression {self.text!r}: expected {wanted}")
        if root == _LOCAL and steps and steps[0].kind == "attribute":
            return Path(str(steps[0].name), tuple(steps[1:]), is_local=True)
        return Path(root, tuple(steps))

    def _attribute(self) -> PathStep:
        return PathStep("attribute", self._name("an attribute's name"))

    def _pick(self) -> PathStep:
        names: list[tuple[str, str]] = []
        while not names or self._take(","):
            new = self._name("a field's name")
            names.append((new, self._name("a field's name") if self._take(":") else new))
        if not self._take("}"):
            raise self._error("',' or '}'")
        return PathStep("pick", names=tuple(names))

    def _name(self, expected: str) -> str:
        name = self.word
        if self.kind != "name" or keyword.iskeyword(name):
            raise self._error(expected)
        self._advance()
        return name

    def _bracket(self) -> PathStep:
        self._advance()
        if self._take("?"):
            return self._filter()
        kind, word = self.kind, self.word
        if kind == "name":
            return self._key_of()
        if kind not in ("integer", "string") and word != "*":
            raise self._error('"key", an index, a local, *, ?attribute or ?local.attribute')
        self._advance()
        if not self._take("]"):
            raise self._error("']'")
        if word == "*":
            return PathStep("each")
        return PathStep("key", int(word) if kind == "integer" else word[1:-1])

    def _filter(self) -> PathStep:
        name = self._name("an attribute's name")
        return PathStep("each", name) if self._take("]") else PathStep("each", of=self._attributes(name))

    def _key_of(self) -> PathStep:
        root = self.word
        self._advance()
        return PathStep("key", of=self._attributes(root))

    def _attributes(self, root: str) -> Path:
        path = self._path(root)
        if any(step.kind != "attribute" for step in path.steps) or not self._take("]"):
            raise self._error("attributes and ']'")
        if not path.is_local and root in _ROOTS[self.moment]:
            raise TableError(
                f"expression {self.text!r}: {root!r} is not a local, which must stand in brackets"
            )
        return path

    def _take(self, sign: str) -> bool:
        if self.kind != "sign" or self.word != sign:
            return False
        self._advance()
        return True

    def _advance(self) -> None:
        self.kind, self.word = next(self.tokens)

    def _split(self) -> Iterator[tuple[str, str]]:
        position, text = 0, self.text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                raise TableError(
                    f"expression {self.text!r}: {text[position:].lstrip()[0]!r} is not allowed here"
                )
            yield match.lastgroup, match[match.lastgroup]
            position = match.end()
        yield _END
        yield _END

    def _error(self, expected: str) -> TableError:
        word = self.word if (self.kind, self.word) == _END else repr(self.word)
        return TableError(f"expression {self.text!r}: expected {expected}, got {word}")
