"""Read the lines "Prefill batch" and "Decode batch": each pair "name: number" is a field, known or not."""

import re
from dataclasses import dataclass
from typing import Final

import polars as pl

from sglang_instrument.analysis.foreign.sglang.log_prefixes import prefixes
from sglang_instrument.analysis.reading.columns import COLUMNS

#: Our names; another pair keeps its own, as letters and underscores.
_NAMES: Final = {
    "#running-req": "running",
    "#queue-req": "queued",
    "#new-seq": "new_sequences",
    "#new-token": "new_tokens",
    "#cached-token": "cached_tokens",
    "gen throughput (token/s)": "tokens_per_sec",
    "input throughput (token/s)": "input_tokens_per_sec",
    "token usage": "token_usage",
    "accept len": "accepted_length",
}
_COUNTS: Final = ("running", "queued", "new_sequences", "new_tokens", "cached_tokens")
_NEEDED: Final = ("running", "tokens_per_sec", "accepted_length")
_MESSAGE: Final = r"(?s)^(?P<prefix>.*?)(?P<kind>Decode|Prefill) batch\b(?P<rest>.*)$"
_NAME: Final = r"[#A-Za-z][A-Za-z0-9 #()/_.-]{0,60}"
_PAIR: Final = re.compile(rf"(?:^|[,.\]] ?|, )({_NAME}): ?-?\d")
_NUMBER: Final = r": ?(-?\d{1,15}(?:\.\d{1,15})?)(?:[,\s\\\"]|$)"
_DIGITS: Final = r"\d+(?:\.\d+)?"
_MOST_FIELDS: Final = 40
_MOST_SHAPES: Final = 10_000
_REPEATED: Final = r"\[repeated (\d{1,9})x across cluster\]"
#: Columns that a field of the engine may not take.
_TAKEN: Final = frozenset(COLUMNS) | {
    "file",
    "line",
    "prefix",
    "kind",
    "rest",
    "stamp",
    "precision_us",
    "dated",
}
_TAKEN_LATER: Final = {"server", "dp", "ranks", "repeated", "row", "is_first", "busy_us", "trainer_step"}


@dataclass
class BatchLines:
    """What lines about batches say.

    Attributes:
        table: A row for each line with a time: `file`, `stamp`, `precision_us`, `server`, `dp`, `ranks`,
            `kind`, `repeated`, and `fields`.
        fields: The names of the columns that hold what the engine says.
        misread: How many lines have no time, or no throughput of a decoder, by their kind, with one of them.
        undated: Lines whose day is not known but from when the file was changed.
    """

    table: pl.DataFrame
    fields: list[str]
    misread: dict[str, tuple[int, str]]
    undated: int


def batch_lines(lines: pl.DataFrame, changed_us: dict[int, int]) -> BatchLines:
    """Return what lines say; `lines` has `file` and `line`, as `log_marks.lines_of` returns them."""
    parts = lines.with_columns(pl.col("line").str.extract_groups(_MESSAGE).alias("message")).unnest("message")
    parts = parts.with_columns(pl.col("prefix", "rest").fill_null(""))
    table = pl.concat([parts, prefixes(parts, changed_us)], how="horizontal")
    repeated = pl.col("rest").str.extract(_REPEATED).cast(pl.Int64).fill_null(0)
    table = table.with_columns(repeated=repeated)
    names = _field_names(table["rest"])
    table = table.with_columns(_value(label, name) for label, name in names.items())
    table = table.with_columns(
        pl.lit(None, pl.Float64).alias(name) for name in _NEEDED if name not in table.columns
    )
    useless = (pl.col("kind") == "Decode") & (
        pl.col("running").is_null() | pl.col("tokens_per_sec").is_null()
    )
    is_misread = pl.col("stamp").is_null() | pl.col("kind").is_null() | useless
    wrong = table.filter(is_misread).with_columns(pl.col("kind").fill_null("Decode"))
    misread = {
        f"{kind} batch": (len(group), str(group["line"][0]))
        for (kind,), group in wrong.partition_by("kind", as_dict=True, maintain_order=True).items()
    }
    with_stamps = table.filter(pl.col("stamp").is_not_null() & pl.col("kind").is_not_null())
    return BatchLines(
        with_stamps.drop("line", "prefix", "rest", "dated"),
        sorted({*names.values()}),
        misread,
        int((~with_stamps["dated"]).sum()),
    )


def _field_names(texts: pl.Series) -> dict[str, str]:
    """Return our name of each pair that the lines have, by the engine's name."""
    shapes = texts.str.replace_all(_DIGITS, "0").unique(maintain_order=True).head(_MOST_SHAPES)
    names: dict[str, str] = {}
    for text in shapes:
        for label in _PAIR.findall(text):
            known = _NAMES.get(label)
            name = known or re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")
            if known is None and (not name or len(names) >= _MOST_FIELDS):
                continue
            if known is None and name in _TAKEN | _TAKEN_LATER:
                name = f"engine_{name}"
            if name not in names.values():
                names[label] = name
    return names


def _value(label: str, name: str) -> pl.Expr:
    """Return the number behind a name; null where there is none, or it is none."""
    text = pl.col("rest").str.extract(rf"(?:^|[,.\]] ?|, ){_escaped(label)}{_NUMBER}")
    if name in _COUNTS:
        count = text.cast(pl.Int64, strict=False)
        return pl.when(count >= 0).then(count).alias(name)
    value = text.cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value).alias(name)


def _escaped(label: str) -> str:
    return re.sub(r"([^A-Za-z0-9 _])", r"\\\1", label)
