"""Find the tables: each module of a folder beside this one declares one or more as constants."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from sglang_instrument.analysis import tables
from sglang_instrument.analysis.tables.table import Table


@cache
def all_tables() -> dict[str, Table]:
    """Return all tables by name, in the order of the folders' and files' names."""
    by_name: dict[str, Table] = {}
    for module in pkgutil.walk_packages(tables.__path__, f"{tables.__name__}."):
        if module.name.count(".") > tables.__name__.count(".") + 1:
            for value in vars(import_module(module.name)).values():
                if isinstance(value, Table) and by_name.setdefault(value.name, value) is not value:
                    raise ValueError(f"two tables have the name {value.name!r}")
    return by_name


def stored_tables() -> dict[str, Table]:
    """Return the tables that `export --parquet` writes and SQL has."""
    return {name: table for name, table in all_tables().items() if table.is_stored}
