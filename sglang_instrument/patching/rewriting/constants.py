"""Let compiled code hold objects in its constants."""

import ast
from types import CodeType
from typing import Any


class Constants:
    """Objects for the constants of rewritten code.

    The compiler takes no objects, so it gets a string that nobody else uses, and the object takes its place
    in the finished code. No name is needed in the function's module.
    """

    def __init__(self) -> None:
        self._objects: dict[str, object] = {}

    def hold(self, value: object) -> ast.Constant:
        """Return a node that stands for `value`."""
        placeholder = f"sglang_instrument placeholder {len(self._objects)}"
        self._objects[placeholder] = value
        return ast.Constant(placeholder)

    def fill(self, code: CodeType) -> CodeType:
        """Return `code` with the objects in place of their strings, nested code included."""
        return code.replace(co_consts=tuple(map(self._filled, code.co_consts)))

    def _filled(self, constant: Any) -> Any:
        if isinstance(constant, CodeType):
            return self.fill(constant)
        return self._objects.get(constant, constant) if isinstance(constant, str) else constant
