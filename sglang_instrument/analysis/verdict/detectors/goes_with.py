"""Find a field of the user's that goes with how long its spans take: no cause, but where to look for one."""

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.timing.open_spans import Array
from sglang_instrument.analysis.verdict.evidence.detector import Findings, NamedCause, detector
from sglang_instrument.analysis.verdict.evidence.fields.own_fields import own_fields
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

GOES_WITH: Final = NamedCause(
    "goes-with",
    "run",
    "spans of one event take the longer, the larger (or the smaller) "
    "[a field of theirs is](#fields-that-go-with-time), at equal step, tools, turn, tokens of the reply and "
    "time of the step. It says what goes together, not why",
    "no cause by itself: compare requests with small and with large values, `requests LOGS --fields NAME`",
    not_planted="the simulator writes no fields of a user's own",
)
_CHANCE: Final = 1e-3  # over all fields that were tried (Holm)
_LEAST_R: Final = 0.5  # rank correlation at equal confounders: a quarter of the variation
_FEWEST: Final = 40  # spans, and requests
_FEWEST_ALIKE: Final = 6  # spans of a step with the same tools
_FEWEST_VALUES: Final = 5
_LEAST_LEFT: Final = 0.05  # of a field's variation: with less, the confounders tell the field
_ITS_TIME: Final = 0.05  # a field over the span's seconds that scatters less is the time itself
_THIRD: Final = 1 / 3


class _Pair(NamedTuple):
    """A field of an event: its spans, its rank correlation with their seconds, and the chance of it."""

    event: str
    field: str
    spans: pl.DataFrame
    r: float
    chance: float


@detector(GOES_WITH)
def find_what_goes_with_time(evidence: Evidence) -> Findings:
    """Yield a finding for each event with a field that goes with its time, where that is much of a step.

    Spans are compared with those of the same step that named the same tools. Turn, tokens of the reply and
    the time of the step are taken away from both by a fit of ranks, so that a field that only mirrors one of
    them, or grows over the run, goes with nothing.
    """
    values = own_fields(evidence)
    if values.is_empty():
        return
    pairs = sorted(_pairs(values), key=lambda pair: pair.chance)
    sure_pairs = []
    for place, pair in enumerate(pairs):  # Holm: the first that fails ends it
        if pair.chance * (len(pairs) - place) >= _CHANCE:
            break
        sure_pairs.append(pair)
    for event in sorted({pair.event for pair in sure_pairs}):
        best = max((pair for pair in sure_pairs if pair.event == event), key=lambda pair: abs(pair.r))
        if abs(best.r) >= _LEAST_R:
            yield from _finding(evidence, best, len(pairs))


def _pairs(values: pl.DataFrame) -> Iterator[_Pair]:
    alike = [*STEP, "tools"]
    for (event, field), rows in values.group_by("event", "field", maintain_order=True):
        spans = rows.filter(pl.len().over(alike) >= _FEWEST_ALIKE)
        requests = spans.select(*STEP_OF_WORKER, "request_id").n_unique()
        if min(len(spans), requests) < _FEWEST or spans["value"].n_unique() < _FEWEST_VALUES:
            continue
        if _is_the_time(spans):
            continue
        r, others = _rank_correlation(spans, alike)
        freedom = requests - 3 - others
        z = math.atanh(min(max(r, -0.999999), 0.999999)) * math.sqrt(max(freedom, 0))
        yield _Pair(str(event), str(field), spans, r, math.erfc(abs(z) / math.sqrt(2)))


def _is_the_time(spans: pl.DataFrame) -> bool:
    """Return whether a field is the span's own time in other units."""
    ratio = (spans["value"].abs() / spans["sec"]).log()
    spread: Any = (ratio - ratio.median()).abs().median()
    return not math.isfinite(spread) or float(spread) < _ITS_TIME


def _rank_correlation(spans: pl.DataFrame, alike: list[str]) -> tuple[float, int]:
    """Return the correlation of the ranks at equal confounders, and how many of these vary."""
    share = [
        ((pl.col(name).rank() / (pl.len() + 1)).over(alike) - 0.5).alias(name) for name in ("sec", "value")
    ]
    of_step = ((pl.col("start_us").rank() / (pl.len() + 1)).over(STEP) - 0.5).alias("start_us")
    filled = [
        pl.col(name).fill_null(0).cast(pl.Float64).rank().alias(name) for name in ("turn", "response_tokens")
    ]
    ranks = spans.select(*share, of_step, *filled).to_numpy()
    others = ranks[:, 2:]
    varying = others[:, others.std(axis=0) > 0]
    known = np.column_stack([np.ones(len(ranks)), varying, varying**2])
    sec, value = (_residual(ranks[:, column], known) for column in (0, 1))
    scale = float(np.sqrt((sec**2).sum() * (value**2).sum()))
    of_variation = float(
        (value**2).sum() / max(1e-12, float(((ranks[:, 1] - ranks[:, 1].mean()) ** 2).sum()))
    )
    if scale <= 0 or of_variation < _LEAST_LEFT:  # the confounders tell the field
        return 0.0, varying.shape[1]
    return float((sec * value).sum()) / scale, 2 * varying.shape[1]


def _residual(values: Array, known: Array) -> Array:
    fitted, *_ = np.linalg.lstsq(known, values, rcond=None)
    rest: Array = values - known @ fitted
    return rest


def _finding(evidence: Evidence, pair: _Pair, tried: int) -> Iterator[Finding]:
    rank = (pl.col("value").rank() / (pl.len() + 1)).over(*STEP, "tools")
    place = rank if pair.r > 0 else 1 - rank
    spans = pair.spans.with_columns(place=place)
    usual = spans.filter(pl.col("place") <= _THIRD).group_by("tools").agg(usual_sec=pl.col("sec").median())
    spans = spans.join(usual, on="tools", maintain_order="left")
    over = (pl.col("sec") - pl.col("usual_sec")).clip(lower_bound=0.0).fill_null(0.0)
    spans = spans.with_columns(excess_sec=pair.r**2 * over)
    of_requests = spans.drop_nulls("request_id")
    of_workers = spans.filter(pl.col("request_id").is_null())
    lost = evidence.lost_in_requests_or_flow(of_requests) if len(of_requests) else pl.DataFrame()
    if len(of_workers):
        lost = evidence.lost_by_workers(of_workers)
    steps = spans.select(STEP).n_unique()
    worth = evidence.worth(lost)
    if worth.is_empty() or 2 * len(worth) < steps:
        return
    lost_sec = float(lost["lost_sec"].sum()) / steps
    low, high = (
        float(spans.filter(side)["sec"].median())  # type: ignore[arg-type]  # of floats
        for side in (pl.col("place") <= _THIRD, pl.col("place") >= 1 - _THIRD)
    )
    sides = ("smallest", "largest") if pair.r > 0 else ("largest", "smallest")
    rests_on = (
        f"rank correlation {pair.r:+.2f} over {len(spans):,} spans of {steps} steps; {tried} fields tried"
    )
    sentence = (
        f"the time of {pair.event} goes with its field {pair.field}: {seconds(low)} in the third with the "
        f"{sides[0]} values, {seconds(high)} in that with the {sides[1]} ({rests_on}); up to "
        f"{seconds(lost_sec)} of a step go with it"
    )
    numbers = {
        "field": pair.field,
        "correlation": pair.r,
        "spans": len(spans),
        "steps": steps,
        "tried": tried,
    }
    numbers |= {"low_sec": low, "high_sec": high}
    advice = f"no cause by itself: compare requests by it, `requests LOGS --fields {pair.field}`"
    yield Finding(
        GOES_WITH.name, "run", lost_sec, sentence, event=pair.event, advice=advice, evidence=numbers
    )
