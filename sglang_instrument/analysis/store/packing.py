"""Leave out of stored records what other columns tell, and fill it in again when they are read.

It is exact to the last digit and character. Half of a record's bytes would otherwise be its ids, which are in
`extra` and in columns, its start, which follows from the end and the duration, and digits of durations below
a nanosecond, which no log holds. Rows are filled in by themselves: parts of earlier versions leave out less.
"""

from collections.abc import Collection
from typing import Any, Final

import polars as pl

_DURATION: Final = pl.col("duration_sec")
_LASTS_US: Final = (_DURATION.fill_null(0.0) * 1e6).cast(pl.Int64)
_NANOSECONDS: Final = pl.Decimal(18, 9)
_MOST_SEC: Final = 1e9  # what it can hold
# How `extra` of a record begins that has nothing but its ids before other fields, as our probes write it.
_TURN: Final = pl.concat_str(pl.lit(',"turn":'), pl.col("turn").cast(pl.String))
_IDS: Final = pl.concat_str(
    pl.lit('{"request_id":"'), "request_id", pl.lit('"'), pl.coalesce(_TURN, pl.lit(""))
)
_EXTRA: Final = pl.col("extra")
#: Columns that only stored records have. `extra` lacks its first fields, `request_id` and the `turn` that is
#: known, where `ids_apart` is true. `to_parent` is `parent` less `span`.
PACKED: Final[dict[str, Any]] = {"ids_apart": pl.Boolean, "to_parent": pl.Int64}
_LASTS_SQL: Final = "CAST(trunc(coalesce(CAST(duration_sec AS DOUBLE), 0.0) * 1e6) AS BIGINT)"
#: The same in DuckDB's SQL as `unpacked` does, by column.
UNPACKED_SQL: Final = {
    "start_us": f"coalesce(start_us, end_us - {_LASTS_SQL})",
    "end_us": f"coalesce(end_us, start_us + {_LASTS_SQL})",
    "duration_sec": "CAST(duration_sec AS DOUBLE)",
    "without_nested_sec": "coalesce(without_nested_sec, CAST(duration_sec AS DOUBLE))",
    "steps_sec": "coalesce(steps_sec, without_nested_sec, CAST(duration_sec AS DOUBLE))",
    "parent": "coalesce(parent, span + to_parent)",
    "extra": """CASE WHEN ids_apart
        THEN '{"request_id":"' || request_id || '"' || coalesce(',"turn":' || turn, '')
            || CASE WHEN extra = '{}' THEN '}' ELSE ',' || substr(extra, 2) END
        ELSE extra END""",
}


def packed(rows: pl.DataFrame) -> pl.DataFrame:
    """Return whole records as they are stored; how spans are nested may be missing.

    Args:
        rows: Records, with `end_us` of all.
    """
    after_ids = rows.select(_EXTRA.str.strip_prefix(_IDS)).to_series()
    is_whole = after_ids == "}"
    is_apart = (after_ids != rows["extra"]) & (is_whole | after_ids.str.starts_with(","))
    fields = pl.select(pl.concat_str(pl.lit("{"), after_ids.str.slice(1))).to_series()
    rows = rows.with_columns(
        start_us=pl.when(pl.col("start_us").ne_missing(pl.col("end_us") - _LASTS_US)).then("start_us"),
        extra=pl.when(is_apart & is_whole).then(pl.lit("{}")).when(is_apart).then(fields).otherwise(_EXTRA),
        ids_apart=pl.when(is_apart).then(is_apart),
        **_packed_nesting(rows.columns),
    )
    fitting = pl.when(_DURATION < _MOST_SEC).then(_DURATION)
    in_nanoseconds = rows.select(fitting.cast(_NANOSECONDS)).to_series()
    is_exact = in_nanoseconds.cast(pl.Float64).eq_missing(rows["duration_sec"]).all()
    return rows.with_columns(in_nanoseconds) if is_exact else rows


def _packed_nesting(columns: Collection[str]) -> dict[str, pl.Expr]:
    if "parent" not in columns:
        return {}
    rest, steps = pl.col("without_nested_sec"), pl.col("steps_sec")
    return {
        "without_nested_sec": pl.when(rest != _DURATION).then(rest),
        "steps_sec": pl.when(steps != rest).then(steps),
        "to_parent": pl.col("parent") - pl.col("span"),
        "parent": pl.lit(None, pl.Int64),
    }


def unpacked(rows: pl.LazyFrame, columns: Collection[str]) -> pl.LazyFrame:
    """Return stored records with all that was left out.

    Args:
        rows: The records, with a Float64 for each duration, and `PACKED`.
        columns: What the part holds: others stay null.
    """
    fields = pl.when(_EXTRA != "{}").then(pl.concat_str(pl.lit(","), _EXTRA.str.slice(1)))
    whole = pl.concat_str(_IDS, fields.otherwise(pl.lit("}")))
    rows = rows.with_columns(
        start_us=pl.coalesce("start_us", pl.col("end_us") - _LASTS_US),
        end_us=pl.coalesce("end_us", pl.col("start_us") + _LASTS_US),
        extra=pl.when("ids_apart").then(whole).otherwise(_EXTRA),
    )
    if "steps_sec" in columns:
        rows = rows.with_columns(
            without_nested_sec=pl.coalesce("without_nested_sec", _DURATION),
            steps_sec=pl.coalesce("steps_sec", "without_nested_sec", _DURATION),
            parent=pl.coalesce("parent", pl.col("span") + pl.col("to_parent")),
        )
    return rows.drop(PACKED)
