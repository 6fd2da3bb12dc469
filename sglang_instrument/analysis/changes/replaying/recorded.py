"""Turn the digest of a run into requests that can be replayed."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Final, NamedTuple

import polars as pl

from sglang_instrument.analysis.answers.steps import STEP_OF_WORKER
from sglang_instrument.analysis.changes.replaying.pool_use import PoolUse
from sglang_instrument.analysis.changes.replaying.pools import PooledCalls
from sglang_instrument.analysis.changes.replaying.queueing import admissions
from sglang_instrument.analysis.changes.replaying.replay import ReplayedCall, ReplayedRequest, work_of
from sglang_instrument.analysis.changes.replaying.rules import Recorded
from sglang_instrument.analysis.changes.replaying.server_work import CallWork, ServedCalls
from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.ledger.engine_speed import EngineSpeed, Fit

ANSWERS: Final = ("tool", "interaction")
_REQUEST: Final = ["source", *STEP_OF_WORKER, "request_id", "attempt"]
_OF_ANSWERS: Final = tuple(f"{kind}_sec" for kind in ANSWERS)
_OF_TURN: Final = (
    *("start_us", "turn", "engine_sec", "before_sec", "prefill_share", "response_tokens"),
    *_OF_ANSWERS,
)
_OF_REQUEST: Final = ("start_us", "begin", "was", "engine_sec", "response_tokens", "reward_sec", *_OF_ANSWERS)


class _RecordedTurn(NamedTuple):
    """A call as it was recorded, and the seconds that answered it; `start` since the step's begin.

    At a server, it begins where the server receives it. Before its first token pass `prefill_share` of it, by
    the engine's speed `before_sec`.
    """

    start: float
    number: int | None
    engine_sec: float
    before_sec: float
    prefill_share: float
    tokens: int | None
    answers: list[float]

    @property
    def end(self) -> float:
        return self.start + self.engine_sec

    def at_server(self, work: CallWork) -> "_RecordedTurn":
        """Return the call without the way to the server and back."""
        return self._replace(start=self.start + work.way_sec / 2, engine_sec=self.engine_sec - work.way_sec)


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
    rows: pl.DataFrame,
    digest: Digest,
    fit: Fit,
    limit: int | None = None,
    served: ServedCalls | None = None,
    pooled: PooledCalls | None = None,
) -> list[Recorded]:
    """Return each row of `request_rows` as a request that can be replayed.

    Args:
        rows: Of `request_rows`.
        digest: Of the run.
        fit: The engine's speed.
        limit: How many calls an engine runs at once; None for any number.
        served: What the calls asked of their servers, where the log tells it.
        pooled: Calls of tools and rewards, some of which waited for a place.
    """
    logged: dict[Any, list[Any]] = {}
    for row in _turns(digest, fit).select(*_REQUEST, *_OF_TURN).iter_rows():
        logged.setdefault(row[: len(_REQUEST)], []).append(row[len(_REQUEST) :])
    asked = list(rows.select(*_REQUEST, *_OF_REQUEST).iter_rows())
    turns = [_complete(row[len(_REQUEST) :], logged.get(row[: len(_REQUEST)], [])) for row in asked]
    works = [[_work(row, turn, served) for turn in of_row] for row, of_row in zip(asked, turns, strict=True)]
    turns = [
        [turn if work is None else turn.at_server(work) for turn, work in zip(*each, strict=True)]
        for each in zip(turns, works, strict=True)
    ]
    uses = PoolUse(pooled, rows)
    recorded: list[Recorded | None] = [None] * len(asked)
    for members in pools(rows, fit.speed):
        spans = [turn for number in members for turn in turns[number]]
        calls = iter(_with_usual(spans, _calls(spans, fit.speed, limit)))
        for number in members:
            calls_of_turns = [next(calls) for _ in turns[number]]
            if served is not None:
                calls_of_turns = [_served(work) for work in works[number]]
            request = _recorded(asked[number][len(_REQUEST) :], turns[number], calls_of_turns)
            recorded[number] = uses.placed(number, request, [turn.end for turn in turns[number]])
    return [request for request in recorded if request is not None]


def _work(row: tuple[Any, ...], turn: _RecordedTurn, served: ServedCalls | None) -> CallWork | None:
    """Return what a turn's call asked of its server, where that is known."""
    _, *place, request_id, attempt = row[: len(_REQUEST)]
    return (
        served.by_turn.get((*place, request_id, turn.number)) if served is not None and not attempt else None
    )


def _served(work: CallWork | None) -> tuple[ReplayedCall, tuple[float, float]]:
    """Return a call at its server; one of which nothing is known takes none of any server's time."""
    if work is None:
        return ReplayedCall(0.0, 0.0, 0.0, engine=0), (0.0, 0.0)
    call = ReplayedCall(0.0, work.prefill_sec, work.work, engine=work.engine)
    return call, (work.usual_prefill_sec, work.usual_work)


def _with_usual(
    turns: Sequence[_RecordedTurn], calls: list[ReplayedCall]
) -> list[tuple[ReplayedCall, tuple[float, float]]]:
    """Return the calls of an engine in a step, each with its prefill and work by the engine's pace there."""
    paces = [call.work / turn.tokens for call, turn in zip(calls, turns, strict=True) if turn.tokens]
    pace = median(paces) if paces else 1.0
    whole = sum(turn.before_sec for turn in turns)
    longer = sum(call.prefill_sec for call in calls) / whole if whole else 1.0
    return [
        (call, (longer * turn.before_sec, pace * turn.tokens if turn.tokens else call.work))
        for call, turn in zip(calls, turns, strict=True)
    ]


def pools(rows: pl.DataFrame, speed: EngineSpeed) -> list[list[int]]:
    """Return which rows call the same engine."""
    pool = [name for name in speed.pool if name in rows.columns]
    numbered = rows.with_row_index("number").group_by(pool, maintain_order=True).agg("number")
    return numbered["number"].to_list()


def _turns(digest: Digest, fit: Fit) -> pl.DataFrame:
    """Return the turns in order, with `prefill_share`: the part of the call before its first token."""
    before = fit.speed.call_sec + pl.col("context") * fit.speed.context_sec
    share = (before / pl.col("expected_sec")).clip(0.0, 1.0).fill_nan(0.0)
    shares = fit.calls.select(*_REQUEST, "turn", prefill_share=share, before_sec=before)
    turns = digest.turns.join(shares, on=[*_REQUEST, "turn"], how="left")
    return turns.with_columns(pl.col("prefill_share", "before_sec").fill_null(0.0)).sort(
        *_REQUEST, "start_us"
    )


def _complete(request: tuple[Any, ...], logged: list[Any]) -> list[_RecordedTurn]:
    """Return the turns of a request, with what only the request knows of its tokens and answers."""
    start_us, begin, was, engine_sec, tokens, reward_sec, *answers = request
    if not logged and engine_sec:  # its turns have no number
        logged = [(start_us, None, engine_sec, 0.0, 0.0, tokens, *(0.0 for _ in ANSWERS))]
    turns = [
        _RecordedTurn(begin + (at_us - start_us) / 1e6, number, sec, before, share, of_turn, list(answered))
        for at_us, number, sec, before, share, of_turn, *answered in logged
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
    request: tuple[Any, ...],
    turns: Sequence[_RecordedTurn],
    calls: Sequence[tuple[ReplayedCall, tuple[float, float]]],
) -> Recorded:
    _, begin, was, _, _, reward_sec, *_ = request
    now, timed = begin, []
    for turn, (call, _) in zip(turns, calls, strict=True):
        is_known = call.engine is None or call.work > 0 or call.prefill_sec > 0
        timed.append(replace(call, wait_sec=(turn.start if is_known else turn.end) - now))
        now = turn.end + sum(turn.answers)
    answers = {kind: [turn.answers[number] for turn in turns] for number, kind in enumerate(ANSWERS)}
    return Recorded(
        ReplayedRequest(begin, timed, was - now),
        [turn.tokens or 0 for turn in turns],
        answers,
        reward_sec,
        [usual for _, usual in calls],
    )
