"""Read the numeric fields of spans outside the engine: those of users, and those that a patch table adds."""

import json
from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.reading.all_fields import fields_of
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

#: Phases of work whose spans have fields of their own; what the engine does is judged by its tokens and load.
_PHASES: Final = frozenset(
    {"tool", "reward", "interaction", "preprocess", "postprocess", "environment", "other"}
)
#: Where a thing stands, and how long it took: neither says what work it was.
_PLACES: Final = frozenset({"request_id", "turn", "sample_index", "rollout_n", "group", "index", "attempt"})
_TIMES: Final = (
    "_sec",
    "_ms",
    "_us",
    "_ns",
    "seconds",
    "duration",
    "latency",
    "elapsed",
    "time",
    "timestamp",
)
_MOST_STEPS: Final = 6  # that are read, evenly spaced
_MOST_REQUESTS: Final = 3_000  # of the steps that are read, about
_MOST_SPANS: Final = 30_000
_NOTICEABLE: Final = 0.02  # of the requests' time, that an event takes
_SHORTEST_SEC: Final = 1e-3  # of a span: shorter ones cost nothing
_SCHEMA: Final[dict[str, Any]] = {
    "number": pl.UInt32,
    "tools": pl.String,
    "field": pl.String,
    "value": pl.Float64,
}


def own_fields(evidence: Evidence) -> pl.DataFrame:
    """Return the numeric fields of spans of some training steps, one row for each span and field.

    Of events that take less than 2 % of the requests' time, none matters. A run in which one file of a step
    has no such field is read no further.

    Returns:
        step, validate, worker, request_id, turn, event, start_us, sec; tools: the tools that the span names;
        field, value; response_tokens: of its request.
    """
    run = evidence.run
    steps = evidence.windows.filter(~pl.col("validate"))["step"].unique().sort()
    if run is None or steps.is_empty():
        return pl.DataFrame()
    of_a_step = max(1, len(evidence.digest.requests) // len(steps))
    most = min(_MOST_STEPS, max(1, _MOST_REQUESTS // of_a_step))
    chosen = steps.gather_every(max(1, -(-len(steps) // most))).to_list()
    worker = evidence.workers.filter(step=chosen[-1])["worker"].min()
    of_worker = pl.col("step") == chosen[-1], pl.col("worker") == worker, ~pl.col("validate")
    spent_sec = float(evidence.digest.requests.filter(*of_worker)["duration_sec"].sum())
    probe = _values(run.read_records([chosen[-1]], worker, False, texts=True))  # type: ignore[arg-type]
    if probe.is_empty():
        return probe
    took = probe.unique("number").group_by("event").agg(pl.col("sec").sum())
    events = took.filter(pl.col("sec") >= _NOTICEABLE * spent_sec)["event"].to_list()
    if not events:
        return probe.clear()
    values = _values(run.read_records(chosen, None, False, texts=True)).filter(pl.col("event").is_in(events))
    tokens = evidence.digest.requests.select(*STEP_OF_WORKER, "request_id", "response_tokens")
    tokens = tokens.unique([*STEP_OF_WORKER, "request_id"])
    return values.join(tokens, on=[*STEP_OF_WORKER, "request_id"], how="left", maintain_order="left")


def _values(records: pl.DataFrame) -> pl.DataFrame:
    """Return the fields of the spans that may have some."""
    spans = records.filter(
        pl.col("phase").cast(pl.String).is_in(_PHASES)
        & (pl.col("role").cast(pl.String) == "worker")
        & (pl.col("duration_sec") > _SHORTEST_SEC)
        & pl.col("extra").is_not_null()
    ).head(_MOST_SPANS)
    spans = spans.with_row_index("number")
    rows = [
        row for number, extra in spans.select("number", "extra").iter_rows() for row in _own(number, extra)
    ]
    named = spans.select(
        "number",
        *STEP,
        "worker",
        pl.col("request_id", "event").cast(pl.String),
        "turn",
        "start_us",
        sec="duration_sec",
    )
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row").join(named, on="number", maintain_order="left")


def _own(number: int, extra: str) -> Iterator[tuple[int, str, str, float]]:
    fields = fields_of(extra, None)
    tools = fields.get("tools", fields.get("tool"))
    names = json.dumps(tools) if isinstance(tools, list) else str(tools or "")
    for name, value in fields.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
        if is_number and name not in _PLACES and not name.endswith(_TIMES):
            yield number, names, name, float(value)
