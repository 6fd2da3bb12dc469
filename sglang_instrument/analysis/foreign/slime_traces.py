"""Read slime's and Miles' dumps of rollout data: `--save-debug-rollout-data .../rollout_{rollout_id}.pt`.

`slime/observability/trace_utils.py` makes a trace of each sample: a list of events, of which "span_start" and
"span_end" with one `span_id` are a span. A sample without a trace, as of Miles and of older versions, tells
its length, reward, status and versions of the weights, and no time: an instant event when it was dumped.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.foreign.records.rows import ForeignLog, as_us, is_whole, texts, to_rows
from sglang_instrument.analysis.foreign.slime_samples import (
    Sample,
    SampleEvent,
    demand_written_out,
    samples_of,
)
from sglang_instrument.analysis.foreign.stores.torch_files import is_torch_file, read_torch
from sglang_instrument.errors import LogError

NAME: Final = "rollout dumps of slime and Miles"
FILES: Final = "rollout_N.pt of --save-debug-rollout-data"
_CANNOT_SHOW: Final = [
    "what the trainer does between rollouts, and weight updates",
    "samples that slime dropped, and who waited for whom: one process runs all requests",
]
_UNTRACED: Final = "times of {count:,} samples, which have no trace; their lengths count the replies of tools"
_OPEN: Final = "{count:,} spans that did not end"
_REQUEST: Final = "async_rollout_request_complete"
_CALL: Final = "turn_engine_call"
_GROUP: Final = "request_group"
#: Our event for each of slime's; others keep their names.
_EVENTS: Final = {
    "generate_and_rm": _REQUEST,
    "generate_and_rm_group": _GROUP,
    "sglang_generate": _CALL,
    "sglang_generate_stream": _CALL,
    "reward_model": "reward_calculation",
    "group_reward_model": "reward_calculation",
}
#: The phase of a span of the user's own, by a word in its name.
_WORDS: Final = {"tool": "tool", "reward": "reward", "verif": "reward", "sglang_pd": "engine"}
_FINISHED: Final = {"completed": "stop", "truncated": "length", "aborted": "abort", "failed": "failed"}
_SAMPLE: Final[dict[str, Any]] = {
    "step": pl.Int64,
    "validate": pl.Boolean,
    "request_id": pl.String,
    "group": pl.String,
    "reward": pl.Float64,
    "response_length": pl.Int64,
    "status": pl.String,
    "first_weight_version": pl.String,
    "weight_version": pl.String,
    "prompt_tokens": pl.Int64,
    "cached_tokens": pl.Int64,
    "dumped_us": pl.Int64,
}
_SPAN: Final[dict[str, Any]] = {
    "sample": pl.UInt32,
    "name": pl.String,
    "start_sec": pl.Float64,
    "end_sec": pl.Float64,
    "response_tokens": pl.Int64,
    "prompt_tokens": pl.Int64,
    "cached_tokens": pl.Int64,
    "queue_sec": pl.Float64,
    "finish_reason": pl.String,
    "error": pl.String,
}
_Lists = dict[str, list[Any]]


def claims(path: Path, head: bytes) -> bool:
    """Return whether a file is a dump of rollout data."""
    return path.suffix == ".pt" and is_torch_file(head)


def read(paths: Sequence[Path]) -> ForeignLog:
    """Return a request for each sample, and the spans of its trace; each file is a step."""
    log = ForeignLog(pl.DataFrame(), [], list(_CANNOT_SHOW))
    traces = _Traces()
    for path in paths:
        log.files.append(path)
        try:
            dump, pickled_bytes = read_torch(path)
            if isinstance(dump, dict) and isinstance(dump.get("samples"), list):
                demand_written_out(dump["samples"], pickled_bytes)
        except (OSError, LogError) as error:
            log.unreadable[path.name] = str(error)
            continue
        if isinstance(dump, dict) and isinstance(dump.get("samples"), list):
            rollout = dump.get("rollout_id")
            step = rollout if is_whole(rollout) else None
            dumped_us = path.stat().st_mtime_ns // 1000
            samples = samples_of(dump["samples"], log.rejects)
            traces.add(samples, step, dumped_us, validate="eval_" in path.stem)
        else:
            log.unreadable[path.name] = "not a dump of slime's rollout data: it has no list `samples`"
    log.rows = to_rows(_rows(traces))
    for count, words in ((traces.untraced, _UNTRACED), (traces.open, _OPEN)):
        if count:
            log.cannot_show.append(words.format(count=count))
    return log


class _Traces:
    """Columns of samples, and of the spans of their traces.

    Attributes:
        samples, spans: The columns; an instant event is a span without an end.
        untraced: Samples without a trace.
        open: Spans without an end.
    """

    def __init__(self) -> None:
        self.samples: _Lists = {name: [] for name in _SAMPLE}
        self.spans: _Lists = {name: [] for name in _SPAN}
        self.untraced = self.open = 0

    def add(self, samples: Sequence[Sample], step: int | None, dumped_us: int, validate: bool) -> None:
        """Add the samples of a file."""
        begun = len(self.samples["step"])
        self.untraced += sum(sample.trace is None or not sample.trace.events for sample in samples)
        self._add_samples(samples, step, validate)
        self.samples["dumped_us"] += [dumped_us] * len(samples)
        # One comprehension per column: much faster than one loop over the events.
        events = [
            (number, event)
            for number, sample in enumerate(samples, begun)
            for event in (sample.trace.events if sample.trace is not None else ())
        ]
        ends = {event.span_id: event for _, event in events if event.type == "span_end"}
        begins = [(number, event) for number, event in events if event.type == "span_start"]
        closed = [(number, event, ends[event.span_id]) for number, event in begins if event.span_id in ends]
        self.open += len(begins) - len(closed)
        self._add_spans(closed)
        instants = [(number, event, None) for number, event in events if event.type == "event"]
        self._add_spans(instants)

    def _add_samples(self, samples: Sequence[Sample], step: int | None, validate: bool) -> None:
        lists = self.samples
        lists["step"] += [step] * len(samples)
        lists["validate"] += [validate] * len(samples)
        lists["request_id"] += [
            str(number if sample.index is None else sample.index) for number, sample in enumerate(samples)
        ]
        lists["group"] += [
            None if sample.group_index is None else str(sample.group_index) for sample in samples
        ]
        lists["reward"] += [sample.reward_or_none for sample in samples]
        lists["response_length"] += [sample.response_length for sample in samples]
        lists["status"] += [sample.status for sample in samples]
        versions: list[list[Any]] = [sample.weight_versions or [None] for sample in samples]
        lists["first_weight_version"] += [
            None if of_sample[0] is None else str(of_sample[0]) for of_sample in versions
        ]
        lists["weight_version"] += [
            None if of_sample[-1] is None else str(of_sample[-1]) for of_sample in versions
        ]

        prompts = [sample.prompt_tokens for sample in samples]
        lists["prompt_tokens"] += [tokens for tokens, _ in prompts]
        lists["cached_tokens"] += [tokens for _, tokens in prompts]

    def _add_spans(self, spans: Sequence[tuple[int, SampleEvent, SampleEvent | None]]) -> None:
        lists = self.spans
        lists["sample"] += [number for number, _, _ in spans]
        lists["name"] += [begin.name for _, begin, _ in spans]
        lists["start_sec"] += [begin.ts for _, begin, _ in spans]
        lists["end_sec"] += [None if end is None else end.ts for _, _, end in spans]
        attributes = [None if end is None else end.attrs for _, _, end in spans]
        lists["response_tokens"] += [
            None if of_span is None else of_span.completion_tokens for of_span in attributes
        ]
        lists["prompt_tokens"] += [
            None if of_span is None else of_span.prompt_tokens for of_span in attributes
        ]
        lists["cached_tokens"] += [
            None if of_span is None else of_span.cached_tokens for of_span in attributes
        ]
        lists["queue_sec"] += [None if of_span is None else of_span.queue_time for of_span in attributes]
        lists["finish_reason"] += [
            None if of_span is None else of_span.finish_reason for of_span in attributes
        ]
        lists["error"] += [None if of_span is None else of_span.error_type for of_span in attributes]


def _frame(lists: _Lists, kinds: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(
        [
            texts(name, lists[name]) if kind == pl.String else pl.Series(name, lists[name], kind)
            for name, kind in kinds.items()
        ]
    )


def _rows(traces: _Traces) -> pl.DataFrame:
    samples = _frame(traces.samples, _SAMPLE).with_columns(task=pl.int_range(1, pl.len() + 1))
    spans = _named(_frame(traces.spans, _SPAN))
    requests = _requests(spans, samples)
    parts = spans.filter(pl.col("event") != _REQUEST)
    same = samples.select("step", "validate", "request_id", "task")[parts["sample"]]
    return pl.concat(
        [pl.concat([parts.drop("sample", "name"), same], how="horizontal"), requests], how="diagonal_relaxed"
    )


def _named(spans: pl.DataFrame) -> pl.DataFrame:
    """Add our event, its phase, its turn and its times; of the copies of a group's span keep one."""
    names = spans["name"].unique().to_list()
    events = [_EVENTS.get(name, name) for name in names]
    phases = [None if name in _EVENTS else _phase_of(name) for name in names]
    name = pl.col("name")
    spans = spans.with_columns(
        event=name.replace_strict(names, events, return_dtype=pl.String),
        phase=name.replace_strict(names, phases, return_dtype=pl.String),
        start_us=as_us(pl.col("start_sec")),
        end_us=as_us(pl.col("end_sec")),
    ).drop("start_sec", "end_sec")
    again = ~pl.struct("event", "start_us", "end_us").is_first_distinct()
    spans = spans.filter(~((pl.col("event") == _GROUP) & again))
    is_call = pl.col("event") == _CALL
    turn = (is_call.cast(pl.Int64).cum_sum().over("sample") - 1).clip(lower_bound=0)
    return spans.with_columns(turn=pl.when(is_call | (pl.col("phase") == "tool")).then(turn))


def _phase_of(name: str) -> str | None:
    return next((phase for word, phase in _WORDS.items() if word in name), None)


def _requests(spans: pl.DataFrame, samples: pl.DataFrame) -> pl.DataFrame:
    """Return a request for each sample: slime's own span of it, or what lies around its other spans."""
    timed = spans.drop_nulls(["start_us", "end_us"])
    of_slime = (
        timed.filter(pl.col("event") == _REQUEST)
        .group_by("sample")
        .agg(own_start=pl.col("start_us").min(), own_end=pl.col("end_us").max(), error=pl.col("error").last())
    )
    is_call = pl.col("event") == _CALL
    tokens = pl.col("response_tokens").filter(is_call)
    inner = (
        timed.filter(~pl.col("event").is_in([_REQUEST, _GROUP]))
        .group_by("sample")
        .agg(
            start_us=pl.col("start_us").min(),
            end_us=pl.col("end_us").max(),
            turns=is_call.sum(),
            told=pl.when((tokens.len() > 0) & (tokens.null_count() == 0)).then(tokens.sum()),
            finish_reason=pl.col("finish_reason").filter(is_call).drop_nulls().last(),
        )
    )
    joined = samples.with_row_index("sample").join(of_slime, on="sample", how="left", maintain_order="left")
    joined = joined.join(inner, on="sample", how="left", maintain_order="left")
    finished = pl.col("status").replace_strict(_FINISHED, default=None, return_dtype=pl.String)
    return joined.with_columns(
        start_us=pl.coalesce("own_start", "start_us", "dumped_us"),
        end_us=pl.coalesce("own_end", "end_us"),
        turns=pl.when(pl.coalesce("own_start", "start_us").is_not_null()).then(pl.col("turns").fill_null(0)),
        # `response_length` also counts the replies of tools.
        response_tokens=pl.coalesce("told", "response_length"),
        finish_reason=pl.coalesce("finish_reason", finished),
        event=pl.lit(_REQUEST),
    ).drop("sample", "own_start", "own_end", "told", "response_length", "status", "dumped_us")
