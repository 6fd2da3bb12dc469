"""Collect what the report says of asynchronous training: stale samples, weight updates, waste."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.answers.asynchronous import staleness, waste
from sglang_instrument.analysis.answers.asynchronous.fates import logs_consumption, sample_fates
from sglang_instrument.analysis.answers.asynchronous.words import staleness_words, waste_words
from sglang_instrument.analysis.answers.weights.lineage import lineage_by_weights, lineage_of
from sglang_instrument.analysis.answers.weights.records import weight_spans
from sglang_instrument.analysis.answers.weights.served import served_calls
from sglang_instrument.analysis.answers.weights.updates import PARTS, missing_of, updates_of

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run

_MOST: Final = 40  # rows of a table
#: Columns of the tokens, and their headings.
_FATES: Final = {
    **{name: name for name in ("used", "waiting", "aborted", "filtered")},
    "over_sampled": "over-sampled",
    **{name: name for name in ("stale", "truncated", "other", "unknown")},
    "equal_rewards": "equal rewards",
}


def staleness_section(run: Run) -> dict[str, Any] | None:
    """Return the rows and sentences of `staleness`; None if no record says which samples a step took."""
    if not logs_consumption(run.digest):
        return None
    fates = sample_fates(run.digest)
    load = staleness.load_table(run.digest, fates)
    table = staleness.staleness_table(fates).join(load, on="step", how="left", maintain_order="left")
    counts = dict(fates["fate"].value_counts().iter_rows())
    words = staleness_words(table.to_dicts(), counts)
    return _section(table, [*words, *staleness.missing_of(fates, run.digest)], "mean", "step")


def waste_section(run: Run) -> dict[str, Any] | None:
    """Return the rows and sentences of `waste`; None if nothing is known of what became of the tokens.

    Returns:
        As of each section; headings: of the columns of `shares`, which each row has.
    """
    fates = waste.with_engine_tokens(run, sample_fates(run.digest))
    table = waste.waste_table(fates, run.digest)
    total, engine = waste.totals(table), waste.engine_waste(run)
    if total is None or not (total["wasted_tokens"] or logs_consumption(run.digest)):
        return None
    words = [*waste_words(total, engine), *waste.missing_of(fates, run.digest, engine)]
    section = _section(table, words, "wasted_tokens", "step")
    for row in [*section["rows"], total]:
        whole, parts = row["generated_tokens"], [row[f"{name}_tokens"] for name in _FATES]
        row["shares"] = [part / whole if whole and part is not None else None for part in parts]
    return {**section, "headings": list(_FATES.values()), "total": total}


def weights_section(run: Run) -> dict[str, Any] | None:
    """Return the weight updates, and the lineage of replies; None without an update.

    Returns:
        As of each section; parts: of an update; lineage: rows of `lineage_by_weights`.
    """
    spans = weight_spans(run)
    if spans.filter(part="transfer").is_empty():
        return None
    calls = served_calls(run)
    updates = updates_of(spans, calls)
    replies = lineage_of(spans, calls).drop_nulls("first_weights")
    shown = sorted(
        sorted(updates, key=lambda row: -row["duration_sec"])[:_MOST], key=lambda row: row["update"]
    )
    return {
        "rows": shown,
        "of_rows": len(updates),
        "sentences": missing_of(updates),
        "parts": PARTS,
        "lineage": lineage_by_weights(replies).tail(_MOST).to_dicts(),
    }


def _section(table: pl.DataFrame, sentences: list[str], by: str, order: str) -> dict[str, Any]:
    """Return the rows with most of a column, in an order; of_rows: how many there are; sentences."""
    shown = table.sort(by, descending=True, nulls_last=True).head(_MOST).sort(order)
    return {"rows": shown.to_dicts(), "of_rows": len(table), "sentences": sentences}
