from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from sglang_instrument.patching.fields import Expression

STAMP: str

class Inside: ...

class Reader:
    def __call__(self, run: Any, /, *values: Any) -> dict[str, Any]: ...

def learn(
    measures: ModuleType, bound: Callable[[str], Any], letting_through: Callable[[], None]
) -> None: ...
def before(event: str) -> list[dict[str, Any]]: ...
def reader(expressions: Mapping[str, Expression], names: Iterable[str]) -> Reader: ...
