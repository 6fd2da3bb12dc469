"""Compare the answers of commands, as parsed from JSON."""

import math
from typing import Any


def differs(now: Any, before: Any, where: str = "answer") -> str:
    """Return where two answers differ, or "".

    Sums may differ in their last digits, which depend on the order of adding. What was pruned is left out.
    """
    if isinstance(before, dict) and isinstance(now, dict):
        names = (before.keys() | now.keys()) - {"pruned"}
        differences = (differs(now.get(name), before.get(name), f"{where}.{name}") for name in sorted(names))
    elif isinstance(before, list) and isinstance(now, list) and len(now) == len(before):
        differences = (
            differs(a, b, f"{where}[{n}]") for n, (a, b) in enumerate(zip(now, before, strict=True))
        )
    elif isinstance(before, float) and isinstance(now, float):
        return "" if math.isclose(now, before, rel_tol=1e-6, abs_tol=1e-9) else f"{where}: {now} {before}"
    else:
        return "" if now == before else f"{where}: {now!r} {before!r}"
    return next(filter(None, differences), "")
