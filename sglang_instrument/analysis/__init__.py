"""Turn the folder of a run into answers; needs the extra `analysis`, and nothing that training needs.

`open_run(folder)` reads a run; its methods answer the usual questions. The other functions take the run, its
`digest` (the tables that most of them need) or a table, and return what the commands answer with. `Run.spans`
holds every span in memory.
"""

from functools import cache
from typing import Any


@cache
def _modules() -> dict[str, str]:
    """Return the module of each public name, as `__init__.pyi` lists them."""
    import ast
    from pkgutil import get_data

    names = ast.parse(get_data(__name__, "__init__.pyi") or b"").body
    imports = [node for node in names if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


def __getattr__(name: str) -> Any:
    # Import at first use: importing polars alone would make `--help` too slow.
    if name == "__all__":
        return sorted(_modules())
    if name.startswith("__") or name not in _modules():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_modules()[name]), name)


def __dir__() -> list[str]:
    return sorted(_modules())
