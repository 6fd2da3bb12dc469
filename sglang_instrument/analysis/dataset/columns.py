"""Name the tables that `export --parquet` writes and `sql` asks, as their files declare them."""

from typing import Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.registry import stored_tables
from sglang_instrument.analysis.tables.run.spans import FIELDS
from sglang_instrument.analysis.tables.run.spans import SPANS as _SPANS
from sglang_instrument.analysis.tables.table import Table


def _columns(table: Table) -> dict[str, Column]:
    return {column.name: column for column in table.columns if column.frame}


#: The name of the table of records.
SPANS: Final = _SPANS.name
#: The tables and their columns, in order. docs/reference/dataset.md shows them.
TABLES: Final = {name: _columns(table) for name, table in stored_tables().items()}
#: What only SQL has: made of other tables when it is asked.
VIEWS: Final = {FIELDS.name: _columns(FIELDS)}


def schema_of(table: str) -> dict[str, Any]:
    """Return the columns of a table and their types."""
    return stored_tables()[table].schema
