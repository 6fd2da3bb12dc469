"""Read from the engines' own logs what each call was at its server: how long it was read, and decoded.

A server reads the prompts of waiting calls first and decodes nothing meanwhile. So the time in which any call
of a server is between its admission and its first token is taken out of the decoding of its others.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from sglang_instrument.analysis.answers.routing.server_calls import server_calls
from sglang_instrument.analysis.answers.steps import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.changes.replaying.replay import work_of
from sglang_instrument.analysis.changes.replaying.serving import most_usual_level
from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.ledger.engine_speed import EngineSpeed, fit_speed, nonnegative_least_squares

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_TURN: Final = (*STEP_OF_WORKER, "request_id", "turn")
_PARTS: Final = ("queue_sec", "prefill_sec", "decode_sec")
_KNOWN: Final = 0.9  # of the calls
_NEARLY_ALL: Final = 0.85  # of the calls; the router and the log may see two of them in another order
_FEWEST: Final = 20  # calls
_LEAST_WAITING: Final = 0.05  # of the time in which servers decode: less is no queue that a limit makes


class CallWork(NamedTuple):
    """What a call asked of its server.

    Attributes:
        engine: The number of the server.
        way_sec: Between the caller and the scheduler, there and back.
        prefill_sec: Of the server's reading, the part that was for it, at a server of the usual pace.
        work: By how much the server's count of tokens grew from its first token to its end, at that pace.
        usual_prefill_sec, usual_work: The same, as the speeds of the server in that step let expect by its
            tokens alone.
    """

    engine: int
    way_sec: float
    prefill_sec: float
    work: float
    usual_prefill_sec: float
    usual_work: float


class ServedCalls(NamedTuple):
    """The calls of a run at its servers.

    Attributes:
        speed: Of decoding, when nothing is read: seconds a token at each number of calls that decode.
        error: Median of |log(measured / expected)| of the decoding.
        engines: How many servers there are.
        limit: How many calls a server ran at once while others waited, though it read no prompt; None where
            none did.
        by_turn: What each call asked, by step, validate, worker, request_id and turn.
        paces: By step and validate, how many times the usual seconds each server took.
        to_fewest: Whether the router sent nearly every call to a server with the fewest in flight.
    """

    speed: EngineSpeed
    error: float | None
    engines: int
    limit: int | None
    by_turn: dict[tuple[Any, ...], CallWork]
    paces: dict[tuple[int, bool], list[float]]
    to_fewest: bool


def served_calls(run: Run, digest: Digest) -> ServedCalls | None:
    """Return the calls at their servers; None where the log does not tell these of nine in ten calls.

    Args:
        run: The run.
        digest: Of its workers.
    """
    calls = _known_calls(run, digest)
    if calls is None:
        return None
    servers = {name: number for number, name in enumerate(calls["server"].unique().sort())}
    groups = [
        _ServerStep(servers[server], (step, validate), of_group)
        for (server, step, validate), of_group in calls.group_by("server", *STEP, maintain_order=True)
    ]
    limit, waited_sec = most_usual_level(group.waits() for group in groups)
    if waited_sec < _LEAST_WAITING * sum(group.decoding_sec for group in groups):
        limit = None
    fit = fit_speed(pl.concat([group.decoding() for group in groups]), shared=False)
    paces: dict[tuple[int, bool], list[float]] = {}
    for group in groups:
        paces.setdefault(group.step, [1.0] * len(servers))[group.engine] = group.set_pace(fit.speed)
    by_turn = {key: call for group in groups for key, call in group.calls()}
    to_fewest = len(servers) > 1 and _go_to_fewest(calls)
    return ServedCalls(fit.speed, fit.error, len(servers), limit, by_turn, paces, to_fewest)


def _go_to_fewest(calls: pl.DataFrame) -> bool:
    """Return whether a router sent nearly every call to a server with the fewest calls in flight."""
    if calls.group_by("worker").agg(pl.col("server").n_unique())["server"].max() == 1:
        return False  # each worker has an engine
    right = 0
    for _, of_step in calls.group_by(STEP):
        spans = of_step.select(begin=pl.col("admitted") - pl.col("queue_sec"), end="end", server="server")
        flying: dict[str, list[float]] = {server: [] for server in calls["server"].unique()}
        for begin, end, server in spans.sort("begin").iter_rows():
            for ends in flying.values():
                while ends and ends[0] <= begin:
                    heapq.heappop(ends)
            right += len(flying[server]) == min(map(len, flying.values()))
            heapq.heappush(flying[server], end)
    return right >= _NEARLY_ALL * len(calls)


def _known_calls(run: Run, digest: Digest) -> pl.DataFrame | None:
    """Return the calls whose parts are known, in seconds since their worker's step began."""
    begun = digest.steps.group_by(STEP_OF_WORKER).agg(begun_us=pl.col("start_us").min())
    turns = digest.turns.filter(pl.col("engine_sec") > 0).drop_nulls("turn")
    if len(turns) < _FEWEST:
        return None
    at_servers = server_calls(run).drop_nulls(["server", *_PARTS, *_TURN])
    if at_servers["prefill_server"].count():
        return None  # read at one server, decoded at another
    at_servers = at_servers.select(*_TURN, "server", *_PARTS, "prompt_tokens", "cached_tokens")
    once = turns.filter(pl.len().over(_TURN) == 1).join(
        at_servers.filter(pl.len().over(_TURN) == 1), on=_TURN, how="inner"
    )
    if len(once) < _KNOWN * len(turns):
        return None
    way = (pl.col("engine_sec") - pl.sum_horizontal(_PARTS)).clip(lower_bound=0.0)
    read = (pl.col("prompt_tokens") - pl.col("cached_tokens").fill_null(0)).clip(lower_bound=1)
    calls = once.join(begun, on=STEP_OF_WORKER).with_columns(way_sec=way, read_tokens=read.fill_null(1))
    admitted = (pl.col("start_us") - pl.col("begun_us")) / 1e6 + pl.col("way_sec") / 2 + pl.col("queue_sec")
    calls = calls.with_columns(admitted=admitted).with_columns(
        first=pl.col("admitted") + pl.col("prefill_sec")
    )
    return calls.with_columns(
        end=pl.col("first") + pl.col("decode_sec"),
        tokens=pl.col("response_tokens").fill_null(1).cast(pl.Float64),
    ).sort(*STEP, "admitted", *_TURN)


class _ServerStep:
    """The calls of a server in a step."""

    def __init__(self, engine: int, step: tuple[int, bool], calls: pl.DataFrame) -> None:
        self.engine, self.step, self._table = engine, step, calls
        reads = _together(calls.select("admitted", "first").rows())
        self._begins, self._ends = [begin for begin, _ in reads], [end for _, end in reads]
        self._read_before = [0.0, *accumulate(end - begin for begin, end in reads)]
        ends = calls.select("first", "end").iter_rows()
        self._spans = [(self._decoded(first), self._decoded(end)) for first, end in ends]

    @property
    def decoding_sec(self) -> float:
        """Seconds in which it decoded."""
        return sum(end - begin for begin, end in _together(sorted(self._spans)))

    def waits(self) -> list[tuple[float, float, float]]:
        """Return when each call arrived, was admitted and ended, on a clock that stands while it reads."""
        arrived = (self._table["admitted"] - self._table["queue_sec"]).to_list()
        ends = zip(arrived, self._table["admitted"], self._spans, strict=True)
        return [(self._decoded(come), self._decoded(begun), end) for come, begun, (_, end) in ends]

    def decoding(self) -> pl.DataFrame:
        """Return the decoding as calls to which a speed is fitted, on a clock that stands while it reads."""
        first, end = (pl.Series(ends, dtype=pl.Float64) for ends in zip(*self._spans, strict=True))
        return self._table.select(
            pl.lit(0).alias("run"),
            "source",
            *STEP,
            pl.lit(self.engine).alias("worker"),
            "request_id",
            "attempt",
            "turn",
            "tokens",
            context=pl.lit(0.0),
            sec=end - first,
            start_sec=first,
            end_sec=end,
        ).filter(pl.col("sec") > 0)

    def set_pace(self, speed: EngineSpeed) -> float:
        """Return how many times the seconds of a speed its tokens took: the median."""
        self._work = work_of([(first, first, end) for first, end in self._spans], speed)
        tokens = self._table["tokens"]
        paces = [done / of for done, of in zip(self._work, tokens, strict=True) if of > 1 and done > 0]
        self._pace = median(paces) if paces else 1.0
        return self._pace

    def calls(self) -> Iterator[tuple[tuple[Any, ...], CallWork]]:
        """Yield what each call asked, after its turn, once the pace is set."""
        prefills, usual_prefills = self._prefills()
        tokens, ways = self._table["tokens"].to_list(), self._table["way_sec"].to_list()
        keys = self._table.select(_TURN).iter_rows()
        each = zip(keys, ways, prefills, self._work, usual_prefills, tokens, strict=True)
        for key, way, prefill, work, usual_prefill, of in each:
            yield (
                key,
                CallWork(
                    self.engine, way, prefill / self._pace, work / self._pace, usual_prefill / self._pace, of
                ),
            )

    def _decoded(self, time_sec: float) -> float:
        """Return the seconds until a time in which the server read no prompt."""
        place = bisect_right(self._begins, time_sec)
        if not place:
            return time_sec
        reads = self._read_before[place - 1] + min(time_sec, self._ends[place - 1]) - self._begins[place - 1]
        return float(time_sec - reads)

    def _prefills(self) -> tuple[list[float], list[float]]:
        """Return the seconds of reading that were for each call, and as the server's speed has them."""
        tokens: list[float] = self._table["read_tokens"].to_list()
        places = [max(0, bisect_right(self._begins, admitted) - 1) for admitted in self._table["admitted"]]
        if not self._begins:
            return [0.0] * len(tokens), [0.0] * len(tokens)
        read, counts = [0.0] * len(self._begins), [0] * len(self._begins)
        for place, of in zip(places, tokens, strict=True):
            read[place] += of
            counts[place] += 1
        lengths = [end - begin for begin, end in zip(self._begins, self._ends, strict=True)]
        call_sec, token_sec = _reading_speed(counts, read, lengths)
        prefills = [lengths[place] * of / read[place] for place, of in zip(places, tokens, strict=True)]
        return prefills, [call_sec + token_sec * of for of in tokens]


def _together(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return spans, in the order of their begins, with those that overlap as one."""
    together: list[tuple[float, float]] = []
    for begin, end in spans:
        if together and begin < together[-1][1]:
            together[-1] = together[-1][0], max(end, together[-1][1])
        elif end > begin:
            together.append((begin, end))
    return together


def _reading_speed(
    counts: Sequence[int], tokens: Sequence[float], sec: Sequence[float]
) -> tuple[float, float]:
    """Return the seconds of a prefill for each call and each token of its prompt that no cache had."""
    parts = np.column_stack([np.asarray(counts, float), np.asarray(tokens, float)])
    solved = nonnegative_least_squares(parts, np.asarray(sec, float))
    whole = float((parts @ solved).sum())
    scale = sum(sec) / whole if whole else 1.0  # all of them together take as long as they took
    return float(solved[0]) * scale, float(solved[1]) * scale
