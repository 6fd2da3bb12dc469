"""Show fields of the log beside requests and events, as the user asks for them: `tool_calls,tokens:max`."""

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import polars as pl

from sglang_instrument.errors import InstrumentError, LogError

#: What can be asked of the numbers of a field; the sum, where nothing is.
WAYS: Final = ("sum", "max", "mean")
_NUMBERS: Final = {
    "numbers": pl.Int64,
    "others": pl.Int64,
    "total": pl.Float64,
    "most": pl.Float64,
    "is_whole": pl.Boolean,
}
_SUMS: Final[Mapping[str, Any]] = {"field": pl.String, **_NUMBERS, "text": pl.String, "text_us": pl.Int64}
_OFFERED: Final = 5  # names in an error
_EXAMPLE: Final = 40  # characters


class Field(NamedTuple):
    """A field that the user asked for: its name in the log, one of `WAYS` or "", and what the user wrote."""

    name: str
    way: str
    label: str


def asked_fields(words: Sequence[str]) -> list[Field]:
    """Return the fields that `NAME[,NAME:max...]` asks for, each once.

    Raises:
        InstrumentError: A name is empty.
    """
    labels = dict.fromkeys(label.strip() for word in words for label in word.split(","))
    fields = [_asked(label) for label in labels]
    if not all(field.name for field in fields):
        raise InstrumentError(
            f"--fields: must be NAME or NAME:max, several with commas, got {','.join(words)!r}"
        )
    return fields


def _asked(label: str) -> Field:
    name, _, way = label.rpartition(":")
    return Field(name, way, label) if way in WAYS and name else Field(label, "", label)


def field_values(
    sums: pl.DataFrame, fields: Sequence[Field], key: Sequence[str]
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return for each group of rows the values of the fields, by what the user wrote.

    Args:
        sums: `field_sums` of the records.
        fields: The fields.
        key: The columns of `sums` to group by, such as `["event"]`.

    Raises:
        InstrumentError: The maximum or mean of a field was asked for that never is a number.
    """
    sums = _complete(sums)
    _demand_numbers(sums, fields)
    by_text = pl.col("text").sort_by("text_us", nulls_last=False, maintain_order=True)
    grouped = sums.group_by(*key, "field", maintain_order=True).agg(
        pl.col("numbers", "total").sum(),
        pl.col("most").max(),
        pl.col("is_whole").all(),
        text=by_text.drop_nulls().last(),
    )
    values: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in grouped.iter_rows(named=True):
        group = values.setdefault(tuple(row[name] for name in key), {field.label: None for field in fields})
        for field in fields:
            if field.name == row["field"]:
                group[field.label] = _value(row, field.way)
    return values


def not_summed(
    sums: pl.DataFrame, fields: Sequence[Field], key: Sequence[str], groups: Collection[tuple[Any, ...]]
) -> list[str]:
    """Return a sentence for each field of which a group has numbers and other values: no sum has these.

    Args:
        sums: `field_sums` of the records.
        fields: The fields.
        key: The columns of `sums` to group by.
        groups: Values of `key`: the groups that count.
    """
    counted = _complete(sums).group_by(*key, "field", maintain_order=True)
    of_groups = counted.agg(pl.col("numbers", "others").sum(), pl.col("text").drop_nulls().first())
    mixed: dict[str, list[dict[str, Any]]] = {}
    for row in of_groups.filter(pl.col("numbers") > 0, pl.col("others") > 0).to_dicts():
        if tuple(row[name] for name in key) in groups:
            mixed.setdefault(row["field"], []).append(row)
    sentences = []
    for name in dict.fromkeys(field.name for field in fields if field.name in mixed):
        others, example = sum(row["others"] for row in mixed[name]), mixed[name][0]["text"][:_EXAMPLE]
        words = "value is no number and is" if others == 1 else "values are no numbers and are"
        sentences.append(f"{name}: {others:,} {words} left out of the sum, such as {example!r}")
    return sentences


def _complete(sums: pl.DataFrame) -> pl.DataFrame:
    """Return sums with their columns, which a table of no files lacks."""
    missing = {name: kind for name, kind in _SUMS.items() if name not in sums.columns}
    return sums.with_columns(pl.lit(None, kind).alias(name) for name, kind in missing.items())


def _demand_numbers(sums: pl.DataFrame, fields: Sequence[Field]) -> None:
    numbers: dict[str, int] = dict(sums.group_by("field").agg(pl.col("numbers").sum()).iter_rows())
    for field in fields:
        if field.way and numbers.get(field.name) == 0:
            raise InstrumentError(
                f"{field.label}: {field.name} is never a number; ask for {field.name} alone"
            )


def _value(row: Mapping[str, Any], way: str) -> Any:
    if not row["numbers"]:
        return row["text"]
    if way == "mean":
        return row["total"] / row["numbers"]
    number = row["most" if way == "max" else "total"]
    return int(number) if row["is_whole"] else number


def of_workers(sums: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of rollout workers, which requests are of; all rows if there is no worker."""
    is_worker = pl.col("role") == "worker"
    return sums.filter(is_worker | ~is_worker.any()) if "role" in sums.columns else sums


def names_in(sums: pl.DataFrame) -> set[str]:
    """Return the names of the fields that have values."""
    return set(_complete(sums)["field"])


def no_such_field(run: str, logs: str, name: str, known: Collection[str]) -> LogError:
    """Return the error for a field that no record has."""
    near = difflib.get_close_matches(name, sorted(known), n=_OFFERED)
    offer = f"the nearest: {', '.join(map(repr, near))}; " if near else ""
    return LogError(
        f'{run}: no field {name!r}; {offer}`sglang-instrument sql {logs} "from fields"` lists all'
    )
