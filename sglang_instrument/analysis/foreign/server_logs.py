"""Read what a bare SGLang server prints: its lines "Prefill batch" and "Decode batch".

A line of decode stands for the last steps of the decoder (40, unless --decode-log-interval says otherwise).
With so many requests running, and so many tokens a second, a token took `running / throughput` seconds.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import polars as pl

from sglang_instrument.analysis.foreign.rows import NO_STEPS, ForeignLog, to_rows
from sglang_instrument.analysis.foreign.windows import IDLE_SEC
from sglang_instrument.analysis.reading.chunks import marked_lines, open_log, whole_lines
from sglang_instrument.errors import LogError

NAME: Final = "a log of SGLang's server"
FILES: Final = 'what the server prints, with lines "Decode batch"'
_MARKS: Final = (b"Decode batch", b"Prefill batch")
_CANNOT_SHOW: Final = [
    "single requests: each row is a slot of the decoder while it was busy, with one request or several",
    "reasons why replies ended, prefill times, tools, rewards, and what the trainer does",
    "times below a second, and their time zone: they are read as UTC",
    NO_STEPS.format(sec=IDLE_SEC),
]
# A line may begin with Ray's "(Server pid=12, ip=10.0.0.1)" and with colours.
_LINE: Final = (
    r"^(?:\x1b\[[0-9;]*m)*(?:\([^()]{0,200}?pid=(?P<pid>\d{1,9})[^()]{0,100}\))?.{0,40}?"
    r"\[(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[.,]?\d{0,6}(?P<ranks>(?: [A-Z]{2,3}\d{1,6}){0,6})\] "
    r"(?P<kind>Decode|Prefill) batch\b"
)
_INTEGERS: Final = {
    "running": r"#running-req: (\d{1,9})",
    "queued": r"#queue-req: (\d{1,9})",
    "new_sequences": r"#new-seq: (\d{1,9})",
    "new_tokens": r"#new-token: (\d{1,12})",
    "cached_tokens": r"#cached-token: (\d{1,12})",
}
_FLOATS: Final = {
    "tokens_per_sec": r"gen throughput \(token/s\): (\d{1,12}(?:\.\d{1,6})?)",
    "token_usage": r"token usage: (\d{1,3}(?:\.\d{1,6})?)",
    "accepted_length": r"accept len: (\d{1,6}(?:\.\d{1,6})?)",
}
_LEAST_TOKENS: Final = 1
_SECOND_US: Final = 1e6
_MOST_SLOTS: Final = 4096  # of a server; a line that tells of more is not trusted
_Slot = tuple[int, int, int, int, int, int]
_SLOT: Final = {
    "worker": pl.Int64,
    "step": pl.Int64,
    "number": pl.Int64,
    "start_us": pl.Int64,
    "end_us": pl.Int64,
    "response_tokens": pl.Int64,
}


def claims(path: Path, head: bytes) -> bool:
    """Return whether a file has such lines near its begin."""
    return not head.startswith(b"{") and any(mark in head for mark in (*_MARKS, b"server_args=ServerArgs("))


def read(paths: Sequence[Path]) -> ForeignLog:
    """Return an instant event for each line, and a request for each time in which a slot was busy."""
    log = ForeignLog(pl.DataFrame(), [], list(_CANNOT_SHOW), tells_requests=False)
    lines = pl.concat([_lines_of(path, number, log) for number, path in enumerate(paths)])
    parsed = _parsed(lines)
    log.rejects.foreign += parsed["stamp"].null_count()
    batches = _placed(parsed.drop_nulls("stamp"))
    slots = _decoded(batches.filter(pl.col("kind") == "Decode"))
    log.rows = to_rows(
        pl.concat([_instants(batches), _calls(slots), _requests(slots)], how="diagonal_relaxed")
    )
    return log


def _lines_of(path: Path, number: int, log: ForeignLog) -> pl.DataFrame:
    log.files.append(path)
    found: list[str] = []
    try:
        with open_log(path) as stream:
            for chunk in whole_lines(stream):
                text = marked_lines(chunk, _MARKS).decode("utf-8", "replace")
                found += text.split("\n") if text else []
    except (OSError, EOFError, LogError) as error:
        log.unreadable[path.name] = str(error)
    return pl.DataFrame(
        {"file": [number] * len(found), "line": found}, schema={"file": pl.Int64, "line": pl.String}
    )


def _parsed(lines: pl.DataFrame) -> pl.DataFrame:
    """Return the values in lines; a line without a time and a kind has null."""
    line = pl.col("line")
    found = lines.with_columns(line.str.extract_groups(_LINE).alias("begin")).unnest("begin")
    return found.with_columns(
        pl.col("stamp").str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="us", strict=False).dt.epoch("us"),
        *(
            line.str.extract(rule).cast(pl.Int64, strict=False).alias(name)
            for name, rule in _INTEGERS.items()
        ),
        *(
            line.str.extract(rule).cast(pl.Float64, strict=False).alias(name)
            for name, rule in _FLOATS.items()
        ),
    ).drop("line")


def _placed(batches: pl.DataFrame) -> pl.DataFrame:
    """Add the worker, one for each server or rank of its data parallelism, and the step.

    A stretch of work of all servers is a step.
    """
    server = pl.struct("file", "pid", pl.col("ranks").str.extract(r"DP(\d+)"))
    ordered = batches.with_columns(worker=server.rank("dense").cast(pl.Int64) - 1)
    ordered = ordered.sort("stamp", maintain_order=True)
    is_new = (pl.col("stamp").diff() > int(IDLE_SEC * 1e6)).fill_null(False)
    return ordered.with_columns(step=is_new.cum_sum().cast(pl.Int64))


def _decoded(batches: pl.DataFrame) -> pl.DataFrame:
    """Return a call of the engine for each time in which a slot of the decoder was busy.

    As many slots are busy as requests run: the lines do not tell which requests these are. The first line of
    a step is left out, because its throughput is that since the last step ended.
    """
    key = ["worker", "step"]
    token_sec = pl.col("running") / pl.col("tokens_per_sec")
    lines = batches.with_columns(gap_sec=pl.col("stamp").diff().over(key) / 1e6, token_sec=token_sec)
    lines = lines.filter(pl.col("gap_sec").is_not_null(), token_sec.is_finite() & (token_sec > 0))
    # The clock of the lines shows whole seconds, so the tokens of a line are known on average only.
    tokens = lines.select((pl.col("gap_sec") / pl.col("token_sec")).mean()).item()
    tokens = max(_LEAST_TOKENS, round(tokens or 0))
    rows: list[_Slot] = []
    for (worker, step), own in lines.partition_by(key, as_dict=True, maintain_order=True).items():
        lasted_us = (own["token_sec"] * tokens * 1e6).to_list()
        ends_us = _ends(own["stamp"].to_list(), lasted_us)
        rows += _slots(
            int(worker), int(step), zip(ends_us, lasted_us, own["running"].to_list(), strict=True), tokens
        )
    calls = pl.DataFrame(rows, schema=_SLOT, orient="row").with_columns(
        request_id=pl.format("{}-{}-{}", "worker", "step", "number"), task=pl.int_range(1, pl.len() + 1)
    )
    return calls.drop("number")


def _ends(stamps: Sequence[int], lasted_us: Sequence[float]) -> list[int]:
    """Return when what each line counts ended.

    A stamp shows the whole second, and durations are exact: lines that follow one another tell where in its
    second each was printed. Where stamps and durations do not agree, such as after a pause, this begins anew.
    """
    ends: list[int] = []
    offsets: list[float] = []  # of the ends of such lines, from when their first began
    low = high = 0.0  # between these it began
    for stamp, lasted in zip(stamps, lasted_us, strict=True):
        offset = (offsets[-1] if offsets else 0.0) + lasted
        if not offsets or max(low, stamp - offset) > min(high, stamp + _SECOND_US - offset):
            ends += _from(low, high, offsets, ends)
            offset, offsets, low, high = lasted, [], stamp - lasted, stamp + _SECOND_US - lasted
        offsets.append(offset)
        low, high = max(low, stamp - offset), min(high, stamp + _SECOND_US - offset)
    return ends + _from(low, high, offsets, ends)


def _from(low: float, high: float, offsets: Sequence[float], before: Sequence[int]) -> list[int]:
    """Return the ends of lines, of which the first began between two times and not before others ended."""
    begun = max((low + high) / 2, before[-1] if before else low)
    return [int(begun + offset) for offset in offsets]


def _slots(worker: int, step: int, lines: Iterable[tuple[int, float, int]], tokens: int) -> Iterator[_Slot]:
    """Yield from when to when slots were busy, with the tokens of each."""
    begun: list[tuple[int, int]] = []  # of busy slots: when, and before how many lines
    end = number = count = 0
    for count, (ended, lasted_us, running) in enumerate(lines):
        now = max(end, ended - int(lasted_us))
        while len(begun) > min(running, _MOST_SLOTS):
            start, since = begun.pop()
            yield worker, step, number, start, end, (count - since) * tokens
            number += 1
        begun += [(now, count)] * (min(running, _MOST_SLOTS) - len(begun))
        end = ended
    for start, since in begun:
        yield worker, step, number, start, end, (count + 1 - since) * tokens
        number += 1


def _calls(slots: pl.DataFrame) -> pl.DataFrame:
    return slots.with_columns(event=pl.lit("turn_engine_call"), turn=pl.lit(0))


def _requests(slots: pl.DataFrame) -> pl.DataFrame:
    return slots.with_columns(event=pl.lit("async_rollout_request_complete"), turns=pl.lit(1))


def _instants(batches: pl.DataFrame) -> pl.DataFrame:
    """Return each line as an instant event."""
    return batches.select(
        *("worker", "step", *_INTEGERS, *_FLOATS, "kind"),
        start_us="stamp",
        task=pl.lit(0),
        event=pl.lit("scheduler_batch"),
    )
