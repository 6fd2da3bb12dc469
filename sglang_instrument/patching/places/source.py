"""Find the definition of a running function in its source, and compile the rewritten definition.

The definition is compiled inside its enclosing classes and functions, with the original file name: so the
compiler gets closures, `super()`, private names, line numbers and columns right. The rest of the module,
except its imports, is left out: it does not affect the function's code and costs time.
"""

import ast
import copy
import linecache
import warnings
from collections.abc import Iterator, Mapping
from inspect import CO_ITERABLE_COROUTINE
from pathlib import Path
from types import CodeType
from typing import Any, Final

from sglang_instrument.patching.places.anchors import DEFINITIONS, FunctionDef, statement_lists

#: Attributes that two equal code objects share; file names and constants are compared apart.
_COMPARED: Final = (
    *("co_name", "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars"),
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_firstlineno", "co_linetable"),
)

Chain = tuple[ast.AST, ...]


class ParsedSource:
    """The parsed source of one file.

    Args:
        text: the source, as bytes so that its own encoding line counts.
        filename: the name that its code objects carry.

    Raises:
        SyntaxError: the source does not parse.
    """

    def __init__(self, text: bytes | str, filename: str) -> None:
        self.filename = filename
        self.tree = parse(text, filename)
        # `from __future__` changes how code is compiled. So does any import since 3.11: a call
        # `module.function()` compiles differently from `thing.method()`.
        self._imports = list(_imports(self.tree.body))
        self._chains: dict[tuple[str, int], list[Chain]] = {}
        self._whole: set[int] = set()  # ids of the chains that match only when the whole module is compiled
        for chain in _chains((self.tree,), self.tree.body):
            definition = chain[-1]
            if isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._chains.setdefault((definition.name, _first_line(definition)), []).append(chain)

    def chain_of(self, code: CodeType) -> Chain | None:
        """Return the module, the enclosing classes and functions, and the definition of `code`.

        None where the source has no such definition at this line, or more than one.
        """
        chains = self._chains.get((code.co_name, code.co_firstlineno), [])
        return chains[0] if len(chains) == 1 else None

    def matches(self, chain: Chain, running: CodeType) -> bool:
        """Say whether the definition at the end of `chain` compiles to `running`; false once rewritten."""
        if same_code(self.compile(chain), running):
            return True
        # Rarely, the rest of the module matters: since 3.12, a bare mention of `super` in it does.
        self._whole.add(id(chain))
        return same_code(self.compile(chain), running)

    def compile(self, chain: Chain) -> CodeType:
        """Return the code object of the definition at the end of `chain`.

        Raises:
            SyntaxError: the rewritten code exceeds a limit of the compiler, such as 20 nested blocks.
        """
        definition = definition_of(chain)
        with warnings.catch_warnings():
            # The import showed the module's own warnings; "'str' object is not callable" is about the
            # rewriter's placeholders.
            warnings.simplefilter("ignore")
            tree = self.tree if id(chain) in self._whole else self._pruned(chain)
            code = compile(tree, self.filename, "exec", dont_inherit=True)
        wanted = (definition.name, _first_line(definition))
        (function_code,) = (
            nested for nested in nested_codes(code) if (nested.co_name, nested.co_firstlineno) == wanted
        )
        return function_code

    def _pruned(self, chain: Chain) -> ast.Module:
        inner: ast.AST = chain[-1]
        for outer in reversed(chain[1:-1]):
            if not isinstance(outer, ast.ClassDef):
                inner = outer  # its whole body decides on its closures
                continue
            shell = copy.copy(outer)
            shell.body = [_as_statement(inner)]
            inner = shell
        return ast.Module(body=[*self._imports, _as_statement(inner)], type_ignores=[])


def parse(text: bytes | str, filename: str = "<source>") -> ast.Module:
    """Parse source, and hide its warnings: its import showed them already.

    Raises:
        SyntaxError: the source does not parse.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, filename)


def read_source(filename: str, module_globals: Mapping[str, Any]) -> bytes | str | None:
    """Return the source of an imported file: from disk, from an archive or from memory; None without one."""
    try:
        return Path(filename).read_bytes()
    except OSError:
        # The loader has the source of a zipped package or a notebook's cell.
        return "".join(linecache.getlines(filename, dict(module_globals))) or None


def definition_of(chain: Chain) -> FunctionDef:
    """Return the function at the end of `chain`."""
    definition = chain[-1]
    if not isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
        raise TypeError(f"expected a function, got {definition!r}")
    return definition


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield `code` and all code objects nested in its constants."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested_codes(constant)


def same_code(code: CodeType, other: CodeType) -> bool:
    """Say whether two code objects do the same at the same lines; file names may differ."""
    if any(getattr(code, name) != getattr(other, name) for name in _COMPARED):
        return False
    if (code.co_flags ^ other.co_flags) & ~CO_ITERABLE_COROUTINE:  # types.coroutine() sets it in a function
        return False
    return len(code.co_consts) == len(other.co_consts) and all(
        map(_same_constant, code.co_consts, other.co_consts)
    )


def _same_constant(constant: object, other: object) -> bool:
    if isinstance(constant, CodeType) and isinstance(other, CodeType):
        return same_code(constant, other)
    if isinstance(constant, frozenset):
        return constant == other
    # repr(): 0.0 and -0.0, True and 1 are equal but not the same; so are tuples of them.
    return type(constant) is type(other) and repr(constant) == repr(other)


def _chains(outer: Chain, block: list[ast.stmt]) -> Iterator[Chain]:
    for statement in block:
        if isinstance(statement, DEFINITIONS):
            chain = (*outer, statement)
            yield chain
            yield from _chains(chain, statement.body)
        else:
            for inner in statement_lists(statement):
                yield from _chains(outer, inner)


def _imports(block: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in block:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield statement
        for inner in statement_lists(statement):
            yield from _imports(inner)


def _first_line(definition: FunctionDef) -> int:
    return min([definition.lineno, *(decorator.lineno for decorator in definition.decorator_list)])


def _as_statement(node: ast.AST) -> ast.stmt:
    if not isinstance(node, ast.stmt):
        raise TypeError(f"expected a statement, got {node!r}")
    return node
