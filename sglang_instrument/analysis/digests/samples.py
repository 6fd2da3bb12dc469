"""List the samples that a trainer took for training, and those that it threw away: a row each."""

from typing import Any, Final

import msgspec
import polars as pl

from sglang_instrument.analysis.reading.sample_facts import Facts
from sglang_instrument.schema import SAMPLES_CONSUMED, SAMPLES_DROPPED

_PLACE: Final = ("source", "role", "worker", "step", "validate")
_FACTS: Final = {
    "row": pl.UInt32,
    "event": pl.String,
    "sample": pl.String,
    "group": pl.String,
    "weight_version": pl.Int64,
    "max_staleness": pl.Int64,
    "reason": pl.String,
    "tokens": pl.Int64,
    "count": pl.Int64,
}
#: Other trainers' records that say the same, without the reason that they stand for.
_CONSUMING: Final = frozenset({SAMPLES_CONSUMED, "groups_collect"})
_FILTERED: Final = "filtered"
_DECODER: Final = msgspec.json.Decoder(Facts)


def sample_rows(records: pl.DataFrame) -> pl.DataFrame:
    """Return one row per sample, and one per group, that a record names; one for a record that names none.

    Args:
        records: With `sample_facts`; instant events, too.

    Returns:
        The place; event: SAMPLES_CONSUMED or SAMPLES_DROPPED; at_us; sample or group: its id; weight_version,
        max_staleness, reason: as logged; tokens, count: of all samples of the record, in its first row.
    """
    with_facts = records.filter(pl.col("sample_facts").is_not_null() & pl.col("step").is_not_null())
    rows = [
        row
        for number, (event, facts) in enumerate(with_facts.select("event", "sample_facts").iter_rows())
        for row in _rows(number, event, _DECODER.decode(facts))
    ]
    made = pl.DataFrame(rows, schema=_FACTS, orient="row")
    places = with_facts.select(*_PLACE, at_us="end_us")[made["row"]]
    return pl.concat([places, made.drop("row")], how="horizontal")


def _rows(number: int, event: str, facts: Facts) -> list[tuple[Any, ...]]:
    is_consumed = event in _CONSUMING
    if event == "group_filter" and facts.is_kept is not False:
        return []
    if not is_consumed and event != SAMPLES_DROPPED and not facts.groups:
        return []
    reason = _FILTERED if event == "group_filter" else facts.reason
    named = SAMPLES_CONSUMED if is_consumed else SAMPLES_DROPPED
    ids = [(sample, None) for sample in facts.samples] + [(None, group) for group in facts.groups]
    shared = (facts.weight_version, facts.max_staleness, reason)
    return [
        (number, named, *sample, *shared, *((facts.tokens, facts.count) if first == 0 else (None, None)))
        for first, sample in enumerate(ids or [(None, None)])
    ]
