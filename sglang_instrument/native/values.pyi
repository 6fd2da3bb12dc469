from collections.abc import Callable
from typing import Any

STAMP: str

def fall_back_on(
    unusual: Callable[[Any], Any],
    entry: Callable[[Any, int, int], Any],
    letting_through: Callable[[], None],
    longest_text: int,
    longest_repr: int,
    longest_list: int,
) -> None: ...
def reduce(extra: dict[str, Any]) -> dict[str, Any]: ...
def reduce_value(value: Any) -> Any: ...
