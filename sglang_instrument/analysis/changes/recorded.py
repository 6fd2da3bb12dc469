"""Turn the digest of a run into requests that can be replayed."""

from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.changes.replay import Call, Request, work_of
from sglang_instrument.analysis.changes.rules import Recorded
from sglang_instrument.analysis.ledger.engine_speed import EngineSpeed, Fit
from sglang_instrument.analysis.run.digest import Digest

OF_WORKER: Final = ("step", "validate", "worker")
ANSWERS: Final = ("tool", "interaction")
_REQUEST: Final = ["source", *OF_WORKER, "request_id"]


def request_rows(digest: Digest) -> pl.DataFrame:
    """Return the requests with `begin` and `was`, their end, in seconds since their worker's step began."""
    begun = digest.steps.group_by(OF_WORKER).agg(begun_us=pl.col("start_us").min())
    requests = digest.requests.join(begun, on=OF_WORKER, maintain_order="left")
    begin = (pl.col("start_us") - pl.col("begun_us")) / 1e6
    return requests.with_columns(begin=begin, was=begin + pl.col("duration_sec"))


def recorded_requests(rows: pl.DataFrame, digest: Digest, fit: Fit) -> list[Recorded]:
    """Return each row of `request_rows` as a request that can be replayed."""
    turns: dict[Any, list[Any]] = {}
    columns = (
        "start_us",
        "engine_sec",
        "prefill_sec",
        "response_tokens",
        *(f"{kind}_sec" for kind in ANSWERS),
    )
    for turn in _turns(digest, fit).select(*_REQUEST, *columns).iter_rows():
        turns.setdefault(turn[: len(_REQUEST)], []).append(turn[len(_REQUEST) :])
    columns = ("start_us", "begin", "was", "engine_sec", "response_tokens", "reward_sec")
    recorded = [
        _recorded(row[len(_REQUEST) :], turns.get(row[: len(_REQUEST)], []))
        for row in rows.select(*_REQUEST, *columns).iter_rows()
    ]
    for members in pools(rows, fit.speed):
        _set_work([recorded[number] for number in members], fit.speed)
    return recorded


def _turns(digest: Digest, fit: Fit) -> pl.DataFrame:
    """Return the turns in order, with `prefill_sec`: the part of the call before its first token."""
    before = fit.speed.call_sec + pl.col("context") * fit.speed.context_sec
    share = (before / pl.col("expected_sec")).clip(0.0, 1.0).fill_nan(0.0)
    shares = fit.calls.select(*_REQUEST, "turn", share=share)
    turns = digest.turns.join(shares, on=[*_REQUEST, "turn"], how="left")
    prefill_sec = (pl.col("engine_sec") * pl.col("share")).fill_null(0.0)
    return turns.with_columns(prefill_sec=prefill_sec).sort(*_REQUEST, "start_us")


def _recorded(row: tuple[Any, ...], turns: list[Any]) -> Recorded:
    start_us, begin, was, engine_sec, tokens, reward_sec = row
    if not turns and engine_sec:  # its turns have no number
        turns = [(start_us, engine_sec, 0.0, tokens, 0.0, 0.0)]
    calls, now = [], begin
    for at_us, engine, prefill, _, tool, interaction in turns:
        start = begin + (at_us - start_us) / 1e6
        calls.append(Call(start - now, prefill, engine))
        now = start + engine + tool + interaction
    answers = {kind: [turn[4 + number] for turn in turns] for number, kind in enumerate(ANSWERS)}
    return Recorded(Request(begin, calls, was - now), [turn[3] or 0 for turn in turns], answers, reward_sec)


def pools(rows: pl.DataFrame, speed: EngineSpeed) -> list[list[int]]:
    """Return which rows call the same engine."""
    pool = [name for name in speed.pool if name in rows.columns]
    numbered = rows.with_row_index("number").group_by(pool, maintain_order=True).agg("number")
    return numbered["number"].to_list()


def _set_work(pool: list[Recorded], speed: EngineSpeed) -> None:
    """Replace each call's seconds in the engine, which stand in `work` so far, by its work."""
    spans, calls = [], []
    for one in pool:
        now = one.request.begin
        for number, call in enumerate(one.request.calls):
            start = now + call.wait_sec
            spans.append((start, start + call.prefill_sec, start + call.work))
            now = start + call.work + sum(after[number] for after in one.answers.values())
            calls.append(call)
    for call, work in zip(calls, work_of(spans, speed), strict=True):
        call.work = work
