"""Put objects into the constants of compiled code."""

import ast
from types import CodeType
from typing import Any, Final
from weakref import ref

from sglang_instrument.patching.code_constants import GATE, RewrittenConstants

_GATE: Final = "sglang_instrument gate"


class Constants:
    """Objects for the constants of rewritten code.

    The compiler accepts no objects, so `hold` gives it a unique string, and `fill` replaces the string with
    the object. So the function's module needs no new name.
    """

    def __init__(self) -> None:
        self._objects: dict[str, object] = {_GATE: GATE}

    def hold(self, value: object) -> ast.Constant:
        """Return a node that stands for `value`."""
        placeholder = f"sglang_instrument placeholder {len(self._objects)}"
        self._objects[placeholder] = value
        return ast.Constant(placeholder)

    def is_compiler(self) -> ast.expr:
        """Return a test that is true for a compiler of bytecode and false where the code runs."""
        return ast.Compare(ast.Constant(_GATE), [ast.Is()], [ast.Constant(None)])

    def fill(self, code: CodeType, running: CodeType, *more: object) -> CodeType:
        """Return `code` with each string replaced by its object, in nested code, too.

        Args:
            code: the compiled code.
            running: the code that it replaces; whoever puts the new code in its place keeps it.
            more: further constants, after its own.
        """
        constants = (*map(self._filled, code.co_consts), *more)
        return code.replace(co_consts=RewrittenConstants(constants, _name_of(running), ref(running)))

    def _filled(self, constant: Any) -> Any:
        if isinstance(constant, CodeType):
            return self._fill_nested(constant)
        return self._objects.get(constant, constant) if isinstance(constant, str) else constant

    def _fill_nested(self, code: CodeType) -> CodeType:
        constants = tuple(map(self._filled, code.co_consts))
        if any(constant is GATE for constant in constants):
            constants = RewrittenConstants(constants, _name_of(code), None)
        return code.replace(co_consts=constants)


def _name_of(code: CodeType) -> str:
    return getattr(code, "co_qualname", code.co_name)  # the qualified name is new in Python 3.11
