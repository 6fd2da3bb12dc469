"""Turn the digest of a run into requests that can be replayed."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import polars as pl

from sglang_instrument.analysis.answers.steps import STEP_OF_WORKER
from sglang_instrument.analysis.changes.queueing import admissions
from sglang_instrument.analysis.changes.replay import ReplayedCall, ReplayedRequest, work_of
from sglang_instrument.analysis.changes.rules import Recorded
from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.ledger.engine_speed import EngineSpeed, Fit

ANSWERS: Final = ("tool", "interaction")
_REQUEST: Final = ["source", *STEP_OF_WORKER, "request_id", "attempt"]
_OF_ANSWERS: Final = tuple(f"{kind}_sec" for kind in ANSWERS)
_OF_TURN: Final = ("start_us", "engine_sec", "prefill_share", "response_tokens", *_OF_ANSWERS)
_OF_REQUEST: Final = ("start_us", "begin", "was", "engine_sec", "response_tokens", "reward_sec", *_OF_ANSWERS)


class _RecordedTurn(NamedTuple):
    """A call as it was recorded, and the seconds that answered it; `start` since the step's begin."""

    start: float
    engine_sec: float
    prefill_share: float
    tokens: int | None
    answers: list[float]

    @property
    def end(self) -> float:
        return self.start + self.engine_sec


def request_rows(digest: Digest) -> pl.DataFrame:
    """Return the requests with `begin` and `was`, their end, in seconds since their worker's step began.

    A request without a duration cannot be replayed: only its end is known.
    """
    begun = digest.steps.group_by(STEP_OF_WORKER).agg(begun_us=pl.col("start_us").min())
    timed = digest.requests.drop_nulls("duration_sec")
    requests = timed.join(begun, on=STEP_OF_WORKER, maintain_order="left")
    begin = (pl.col("start_us") - pl.col("begun_us")) / 1e6
    return requests.with_columns(begin=begin, was=begin + pl.col("duration_sec"))


def recorded_requests(
    rows: pl.DataFrame, digest: Digest, fit: Fit, limit: int | None = None
) -> list[Recorded]:
    """Return each row of `request_rows` as a request that can be replayed.

    Args:
        rows: Of `request_rows`.
        digest: Of the run.
        fit: The engine's speed.
        limit: How many calls an engine runs at once; None for any number.
    """
    logged: dict[Any, list[Any]] = {}
    for row in _turns(digest, fit).select(*_REQUEST, *_OF_TURN).iter_rows():
        logged.setdefault(row[: len(_REQUEST)], []).append(row[len(_REQUEST) :])
    asked = list(rows.select(*_REQUEST, *_OF_REQUEST).iter_rows())
    turns = [_complete(row[len(_REQUEST) :], logged.get(row[: len(_REQUEST)], [])) for row in asked]
    recorded: list[Recorded | None] = [None] * len(asked)
    for members in pools(rows, fit.speed):
        spans = [turn for number in members for turn in turns[number]]
        calls = iter(_calls(spans, fit.speed, limit))
        for number in members:
            calls_of_turns = [next(calls) for _ in turns[number]]
            recorded[number] = _recorded(asked[number][len(_REQUEST) :], turns[number], calls_of_turns)
    return [request for request in recorded if request is not None]


def pools(rows: pl.DataFrame, speed: EngineSpeed) -> list[list[int]]:
    """Return which rows call the same engine."""
    pool = [name for name in speed.pool if name in rows.columns]
    numbered = rows.with_row_index("number").group_by(pool, maintain_order=True).agg("number")
    return numbered["number"].to_list()


def _turns(digest: Digest, fit: Fit) -> pl.DataFrame:
    """Return the turns in order, with `prefill_share`: the part of the call before its first token."""
    before = fit.speed.call_sec + pl.col("context") * fit.speed.context_sec
    share = (before / pl.col("expected_sec")).clip(0.0, 1.0).fill_nan(0.0)
    shares = fit.calls.select(*_REQUEST, "turn", prefill_share=share)
    turns = digest.turns.join(shares, on=[*_REQUEST, "turn"], how="left")
    return turns.with_columns(pl.col("prefill_share").fill_null(0.0)).sort(*_REQUEST, "start_us")


def _complete(request: tuple[Any, ...], logged: list[Any]) -> list[_RecordedTurn]:
    """Return the turns of a request, with what only the request knows of its tokens and answers."""
    start_us, begin, was, engine_sec, tokens, reward_sec, *answers = request
    if not logged and engine_sec:  # its turns have no number
        logged = [(start_us, engine_sec, 0.0, tokens, *(0.0 for _ in ANSWERS))]
    turns = [
        _RecordedTurn(begin + (at_us - start_us) / 1e6, sec, share, of_turn, list(answered))
        for at_us, sec, share, of_turn, *answered in logged
    ]
    _share_answers(turns, answers, was - (reward_sec or 0.0))
    return _with_tokens(turns, tokens)


def _share_answers(turns: list[_RecordedTurn], answers: Sequence[float], until: float) -> None:
    """Add the seconds of tools that have no turn's number to the turns, by the time after each call."""
    if not turns:
        return
    nexts = [*(turn.start for turn in turns[1:]), until]
    free = [
        max(0.0, next_begin - turn.end - sum(turn.answers))
        for turn, next_begin in zip(turns, nexts, strict=True)
    ]
    whole = sum(free)
    free = [sec / whole for sec in free] if whole else [*(0.0 for _ in turns[1:]), 1.0]
    for kind, sec in enumerate(answers):
        missing = max(0.0, sec - sum(turn.answers[kind] for turn in turns))
        for turn, share in zip(turns, free, strict=True):
            turn.answers[kind] += missing * share


def _with_tokens(turns: list[_RecordedTurn], tokens: int | None) -> list[_RecordedTurn]:
    """Share the tokens of a request over its calls without a number of tokens, by their seconds."""
    unknown = sum(turn.engine_sec for turn in turns if turn.tokens is None)
    if tokens is None or not unknown:
        return turns
    left = max(0, tokens - sum(turn.tokens or 0 for turn in turns))
    return [
        turn._replace(tokens=round(left * turn.engine_sec / unknown)) if turn.tokens is None else turn
        for turn in turns
    ]


def _calls(turns: Sequence[_RecordedTurn], speed: EngineSpeed, limit: int | None) -> list[ReplayedCall]:
    """Return the calls of one engine; the wait before a call is not known yet."""
    begun = admissions([turn.start for turn in turns], [turn.end for turn in turns], limit)
    prefills = [turn.prefill_share * (turn.end - begin) for turn, begin in zip(turns, begun, strict=True)]
    spans = [
        (begin, begin + prefill, turn.end)
        for turn, begin, prefill in zip(turns, begun, prefills, strict=True)
    ]
    return [ReplayedCall(0.0, *each) for each in zip(prefills, work_of(spans, speed), strict=True)]


def _recorded(
    request: tuple[Any, ...], turns: Sequence[_RecordedTurn], calls: list[ReplayedCall]
) -> Recorded:
    _, begin, was, _, _, reward_sec, *_ = request
    now = begin
    for turn, call in zip(turns, calls, strict=True):
        call.wait_sec = turn.start - now
        now = turn.end + sum(turn.answers)
    answers = {kind: [turn.answers[number] for turn in turns] for number, kind in enumerate(ANSWERS)}
    return Recorded(
        ReplayedRequest(begin, calls, was - now), [turn.tokens or 0 for turn in turns], answers, reward_sec
    )
