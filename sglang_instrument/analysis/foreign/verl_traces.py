"""Read the rollout traces that verl writes with MLflow: `actor_rollout_ref.rollout.trace.backend=mlflow`.

`verl/utils/rollout_trace.py` makes a trace of each sample: a span of the agent loop, of each call of the
engine and of each tool. The tags of a trace have the step.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from sglang_instrument.analysis.foreign.mlflow_spans import SPANS, TAGS, is_spans, read_spans
from sglang_instrument.analysis.foreign.records.rows import ForeignLog, to_rows
from sglang_instrument.errors import LogError

NAME: Final = "verl's rollout traces in MLflow"
FILES: Final = "mlruns.db, or mlruns/.../traces.json"
_CANNOT_SHOW: Final = [
    "which worker had a request: all are shown on worker 0",
    "why replies ended, rewards' values, and what the trainer does",
    "samples beyond trace.max_samples_per_step_per_worker",
]
_OPEN: Final = "{count:,} spans that did not end"
_REQUEST: Final = "async_rollout_request_complete"
_CALL: Final = "turn_engine_call"
#: Our event and its phase for each method of verl's, by the end of its name; others keep their names.
_METHODS: Final = {
    "generate": (_CALL, "generate"),
    "execute": ("tool_call", "tool"),
    "extract_tool_calls": ("turn_tool_parsing", "postprocess"),
    "calc_reward": ("reward_calculation", "reward"),
    "run": ("main_loop", "loop"),
}


def claims(path: Path, head: bytes) -> bool:
    """Return whether a file holds such traces."""
    return is_spans(path, head)


def read(paths: Sequence[Path]) -> ForeignLog:
    """Return a request for each trace, and its spans."""
    log = ForeignLog(pl.DataFrame(), [], list(_CANNOT_SHOW))
    spans, tags = [pl.DataFrame(schema=SPANS)], [pl.DataFrame(schema=TAGS)]
    for path in paths:
        log.files.append(path)
        try:
            for some_spans, some_tags in read_spans(path):
                spans.append(some_spans)
                tags.append(some_tags)
        except (OSError, LogError) as error:
            log.unreadable[path.name] = str(error)
    every = (
        pl.concat(spans)
        .drop_nulls(["name", "start_ns"])
        .with_columns(start_us=pl.col("start_ns") // 1000, end_us=pl.col("end_ns") // 1000)
        .drop("start_ns", "end_ns")
    )
    ended = every.drop_nulls("end_us")
    log.rows = to_rows(_rows(ended, _places(pl.concat(tags))))
    if len(ended) < len(every):
        log.cannot_show.append(_OPEN.format(count=len(every) - len(ended)))
    return log


def _places(tags: pl.DataFrame) -> pl.DataFrame:
    """Return the step, the sample and whether it is validation, by trace."""
    value = pl.col("value").str.strip_chars()

    def tag(key: str) -> pl.Expr:
        return value.filter(pl.col("key") == key).first()

    number = r"^-?\d{1,9}$"
    step = tag("step")
    return tags.group_by("trace").agg(
        step=pl.when(step.str.contains(number)).then(step).cast(pl.Int64, strict=False),
        validate=(tag("validate") == "True").fill_null(False),
        group=tag("sample_index"),
        rollout=tag("rollout_n"),
    )


def _rows(spans: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of traces: the root is the request; without one, what lies around all spans."""
    spans = _named(
        spans.sort("trace", "start_us", "end_us", descending=[False, False, True], maintain_order=True)
    )
    traces = _traces(spans).join(places, on="trace", how="left", maintain_order="left")
    short = pl.col("trace").str.slice(-8)
    of_sample = pl.format("{}-{}-{}", "group", pl.col("rollout").fill_null(""), short)
    traces = traces.with_columns(
        request_id=pl.coalesce(of_sample, "trace"), task=pl.int_range(1, pl.len() + 1), event=pl.lit(_REQUEST)
    ).drop("rollout")
    parts = spans.filter(~(pl.col("parent").is_null() & (pl.col("event") == pl.col("name"))))
    same = traces.select("trace", "step", "validate", "group", "request_id", "task")
    parts = parts.drop("sample").join(same, on="trace", how="left", maintain_order="left")
    return pl.concat(
        [parts.drop("trace", "span_id", "parent", "name", "status", "is_inner"), traces.drop("trace")],
        how="diagonal_relaxed",
    )


def _named(spans: pl.DataFrame) -> pl.DataFrame:
    """Add our event, its phase, its tool and its turn."""
    names = spans["name"].unique().to_list()
    methods = [name.rpartition(".") for name in names]
    events = [
        _METHODS.get(method, (name, None))[0] for name, (_, _, method) in zip(names, methods, strict=True)
    ]
    phases = [_METHODS.get(method, (None, None))[1] for _, _, method in methods]
    tools = [owner if method == "execute" else None for owner, _, method in methods]
    name = pl.col("name")
    spans = spans.with_columns(
        event=name.replace_strict(names, events, return_dtype=pl.String),
        phase=name.replace_strict(names, phases, return_dtype=pl.String),
        tool=name.replace_strict(names, tools, return_dtype=pl.String),
        error=pl.when(pl.col("status").is_in(["ERROR", "STATUS_CODE_ERROR"])).then(pl.lit("error")),
    )
    # A client whose method calls that of its base class has a call within the call.
    calls = spans.filter(pl.col("event") == _CALL).select("trace", parent="span_id", is_inner=pl.lit(True))
    spans = spans.join(calls.unique(), on=["trace", "parent"], how="left", maintain_order="left")
    is_call = pl.col("event") == _CALL
    outer = is_call & pl.col("is_inner").is_null()
    turn = (outer.cast(pl.Int64).cum_sum().over("trace") - 1).clip(lower_bound=0)
    return spans.with_columns(turn=pl.when(is_call | (pl.col("event") == "tool_call")).then(turn))


def _traces(spans: pl.DataFrame) -> pl.DataFrame:
    outer = (pl.col("event") == _CALL) & pl.col("is_inner").is_null()
    tokens = pl.col("response_tokens").filter(outer)
    return spans.group_by("trace", maintain_order=True).agg(
        start_us=pl.col("start_us").min(),
        end_us=pl.col("end_us").max(),
        turns=outer.sum(),
        response_tokens=pl.when((tokens.len() > 0) & (tokens.null_count() == 0)).then(tokens.sum()),
        error=pl.col("error").filter(pl.col("parent").is_null()).drop_nulls().first(),
        sample=pl.col("sample").filter(outer).drop_nulls().first(),
        weight_version=pl.col("weight_version").filter(outer).drop_nulls().last(),
    )
