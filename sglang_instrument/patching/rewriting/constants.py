"""Put objects into the constants of compiled code."""

import ast
from types import CodeType
from typing import Any


class Constants:
    """Objects for the constants of rewritten code.

    The compiler accepts no objects, so `hold` gives it a unique string, and `fill` replaces the string with
    the object. So the function's module needs no new name.
    """

    def __init__(self) -> None:
        self._objects: dict[str, object] = {}

    def hold(self, value: object) -> ast.Constant:
        """Return a node that stands for `value`."""
        placeholder = f"sglang_instrument placeholder {len(self._objects)}"
        self._objects[placeholder] = value
        return ast.Constant(placeholder)

    def fill(self, code: CodeType) -> CodeType:
        """Return `code` with each string replaced by its object, in nested code, too."""
        return code.replace(co_consts=tuple(map(self._filled, code.co_consts)))

    def _filled(self, constant: Any) -> Any:
        if isinstance(constant, CodeType):
            return self.fill(constant)
        return self._objects.get(constant, constant) if isinstance(constant, str) else constant
