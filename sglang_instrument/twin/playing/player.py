"""Play an agenda against running servers as a closed loop, and record that like any rollout."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument import bind, install, installed, span, step, uninstall
from sglang_instrument.errors import InstrumentError
from sglang_instrument.twin.agendas.planned import Agenda, AgendaRequest, AgendaStep
from sglang_instrument.twin.agendas.sequences import StepTokens
from sglang_instrument.twin.playing.client import TwinClient, TwinError
from sglang_instrument.twin.playing.open_files import allow_open_files
from sglang_instrument.twin.playing.routes import Route, route_of
from sglang_instrument.twin.playing.stopping import Enough

if TYPE_CHECKING:
    from sglang_instrument.twin.agendas.sequences import Ids

_CALL_SEC: Final = 3600.0
_SETTLING_SEC: Final = 0.3  # servers write what they logged, and clocks of steps do not touch
_META: Final = {
    "prompt_tokens": "prompt_tokens",
    "completion_tokens": "generated_tokens",
    "cached_tokens": "cached_tokens",
    "queue_time": "queue_time",
}


@dataclass
class Played:
    """What the player counted in a step.

    Attributes:
        step: Its number.
        duration_sec: From the begin of the step to the end of its last request.
        calls, prompt_tokens, cached_tokens, generated_tokens: Sums, as the replies tell them.
        retries: How often a server was busy.
        late_sec: By call, the seconds from when the call was due to when it was sent.
    """

    step: int
    duration_sec: float = 0.0
    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    retries: int = 0
    late_sec: list[float] = field(default_factory=list, repr=False)

    @property
    def late_p99_sec(self) -> float:
        """The 99th percentile of `late_sec`; 0 without calls."""
        return sorted(self.late_sec)[int(0.99 * (len(self.late_sec) - 1))] if self.late_sec else 0.0


def play(
    agenda: Agenda,
    servers: Sequence[str],
    *,
    name: str,
    log_dir: str | Path = "logs",
    route: str | None = None,
    vocabulary: int | None = None,
    timeout_sec: float = _CALL_SEC,
    warm_up: bool = True,
    on_step: Callable[[Played], None] | None = None,
) -> list[Played]:
    """Play an agenda against servers, and record it as `log_dir/name`.

    Each turn begins when the reply before and the recorded wait have ended. Prompts are random token ids that
    share what the recorded ones shared, and replies have exactly the recorded lengths.

    Args:
        agenda: What to play.
        servers: Addresses of servers, or of a router.
        name: Of the recorded run.
        log_dir: The folder of runs.
        route: Which server gets a call: see `routes.route_of`.
        vocabulary: How many tokens the model knows; by default as its configuration on this machine says.
        timeout_sec: How long one call may take.
        warm_up: Whether to play the first step once before anything is recorded.
        on_step: Called after each step.

    Returns:
        What was counted in each step.

    Raises:
        TwinError: A server died, refuses a request, or took too long, or requests do not fit its context.
            What was open is aborted.
        InstrumentError: This process is recorded already.
    """
    if installed():
        raise InstrumentError("this process is recorded already: play an agenda in a process of its own")

    async def all_steps() -> list[Played]:
        played = []
        async with opened_player(servers, route, vocabulary, timeout_sec) as player:
            is_cold = warm_up
            for planned in agenda:
                if is_cold:
                    await player.play(planned)
                    is_cold = False
                if not installed():
                    install(experiment=name, log_dir=str(log_dir), trainers=("none",))
                played.append(await player.play(planned))
                if on_step is not None:
                    on_step(played[-1])
        return played

    try:
        return asyncio.run(all_steps())
    finally:
        uninstall()


@asynccontextmanager
async def opened_player(
    servers: Sequence[str], route: str | None, vocabulary: int | None, timeout_sec: float
) -> AsyncIterator[Player]:
    """Yield a player whose servers answer; abort what it has left open at the end."""
    client = TwinClient(servers, timeout_sec)
    player: Player | None = None
    try:
        context, known = await client.limits()
        player = Player(client, route, vocabulary or known, context)
        yield player
    finally:
        if player is not None:
            await client.abort(player.calls)
        await client.close()


class Player:
    """Plays steps one after the other.

    Args:
        client: Of the servers.
        route: Which server gets a call: see `routes.route_of`.
        vocabulary: How many tokens the model knows.
        context: How many tokens a request may have; None if not known.
    """

    def __init__(self, client: TwinClient, route: str | None, vocabulary: int, context: int | None) -> None:
        self._client, self._rule, self._vocabulary, self._context = client, route, vocabulary, context
        self.calls: set[str] = set()  # the ids of those that are open
        self._played = 0  # steps
        self._prefix, self._number = f"twin-{token_hex(4)}-", count(1)

    async def play(self, planned: AgendaStep) -> Played:
        """Play a step; return what was counted."""
        self._demand_room(planned)
        allow_open_files(len(planned.requests))
        tokens = StepTokens(planned, self._vocabulary, self._played)
        self._played += 1
        self._client.path.begin_step(planned.turns)
        url_of = route_of(planned, self._client.urls, self._rule)
        played = Played(planned.step)
        if planned.is_flushed:
            with step(planned.step), span("cache_flush_duration"):
                await self._client.flush()
        retries = self._client.retries
        gc.collect()
        gc.freeze()  # a collection among thousands of open requests takes up to 0.1 s
        gc.disable()
        try:
            with step(planned.step):
                await self._all_workers(planned, tokens, url_of, played)
        finally:
            gc.enable()
            gc.unfreeze()
        played.retries = self._client.retries - retries
        await asyncio.sleep(_SETTLING_SEC)
        return played

    def _demand_room(self, planned: AgendaStep) -> None:
        """Raise if requests do not fit the servers' context."""
        if self._context is None:
            return
        lengths = [turn.prompt_tokens + turn.generated_tokens for turn in planned.turns]
        too_long = sum(length >= self._context for length in lengths)
        if too_long:
            raise TwinError(
                f"step {planned.step}: {too_long:,} of {len(lengths):,} calls do not fit the servers' "
                f"context of {self._context:,} tokens, the longest has {max(lengths):,}: start them with a "
                "larger context length"
            )

    async def _all_workers(
        self, planned: AgendaStep, tokens: StepTokens, url_of: Route, played: Played
    ) -> None:
        begun = time.perf_counter()
        by_worker: dict[int, list[AgendaRequest]] = {}
        for request in planned.requests:
            by_worker.setdefault(request.worker, []).append(request)
        barrier = _Barrier(len(by_worker))
        longest = max((turn.generated_tokens for turn in planned.turns), default=0)
        await _together(
            self._worker(
                *(worker, requests, planned.limits.get(worker), begun, barrier),
                Enough(requests, planned.enough.get(worker), self._client.abort),
                _Playing(tokens, url_of, played, longest),
            )
            for worker, requests in by_worker.items()
        )
        played.duration_sec = time.perf_counter() - begun

    async def _worker(
        self,
        worker: int,
        requests: Sequence[AgendaRequest],
        limit: int | None,
        begun: float,
        barrier: _Barrier,
        enough: Enough,
        playing: _Playing,
    ) -> None:
        """Play the requests of a worker: at their times, or as its limit lets them."""
        places = asyncio.Semaphore(len(requests) if limit is None else limit)
        with bind(worker=worker), span("total_step_duration"):
            await _together(
                self._request(request, None if limit else begun, places, enough, playing)
                for request in requests
            )
            with span("barrier_wait_duration"):
                await barrier.wait()

    async def _request(
        self,
        request: AgendaRequest,
        begun: float | None,
        places: asyncio.Semaphore,
        enough: Enough,
        playing: _Playing,
    ) -> None:
        if begun is not None:
            await enough.until(begun + request.start_sec)
        async with places:
            if enough.is_reached:
                return
            with bind(request_id=request.request_id), span("request", group=request.group) as record:
                ended = time.perf_counter()
                sequence = playing.tokens.first[id(request)]
                reply: list[int] = []
                for number, turn in enumerate(request.turns):
                    due = ended + turn.wait_sec
                    with bind(turn=number), span("turn"):
                        if number:
                            sequence = playing.tokens.next_prompt(request, number, sequence, reply)
                        await _wait(due, number, enough)
                        if not enough.is_reached:
                            reply = await self._call(request, number, sequence, due, enough, playing)
                        ended = time.perf_counter()
                    if enough.is_reached:
                        break
                await enough.until(ended + request.after_sec)
                record.add(turns=number + 1)
                if enough.is_reached:
                    record.add(finish_reason="abort")
            await enough.count(request)

    async def _call(
        self, request: AgendaRequest, number: int, prompt: Ids, due: float, enough: Enough, playing: _Playing
    ) -> list[int]:
        """Call the engine for a turn; return the ids of the reply, of several the first."""
        turn, url = request.turns[number], playing.url_of(request, number)
        tokens = playing.longest if turn.is_aborted else turn.generated_tokens
        if self._context is not None:
            tokens = min(tokens, self._context - turn.prompt_tokens - 1)
        rid = f"{self._prefix}{next(self._number)}"
        with span("generate", rid=rid, server=url.partition("://")[2]) as record:
            late = time.perf_counter() - due
            before_sec, after_sec = self._client.path.missing_sec(turn)
            await enough.until(time.perf_counter() + before_sec)
            if enough.is_reached:
                record.add(finish_reason="abort")
                return []
            for calls in (self.calls, enough.calls):
                calls.add(rid)
            replies = await self._client.generate(url, rid, prompt, tokens, turn.sampling)
            await enough.until(time.perf_counter() + after_sec)
            metas = [reply["meta_info"] for reply in replies]
            reported = {
                name: sum(meta[key] for meta in metas)
                for key, name in _META.items()
                if all(meta.get(key) is not None for meta in metas)
            }
            reason = metas[0]["finish_reason"]["type"]
            record.add(late_sec=round(late, 6), finish_reason=reason, **reported)
        for calls in (self.calls, enough.calls):
            calls.discard(rid)
        played = playing.played
        played.calls += 1
        played.late_sec.append(late)
        for name in ("prompt_tokens", "cached_tokens", "generated_tokens"):
            setattr(played, name, getattr(played, name) + (reported.get(name) or 0))
        return list(replies[0].get("output_ids") or ())


@dataclass(frozen=True)
class _Playing:
    """What all requests of a step share: their tokens, their servers, the counts, and the longest reply."""

    tokens: StepTokens
    url_of: Route
    played: Played
    longest: int


async def _wait(due: float, turn: int, enough: Enough) -> None:
    """Wait as recorded; between two turns, that is what tools and the environment took."""
    if not turn:
        await enough.until(due)
        return
    with span("tool", tool="recorded"):
        await enough.until(due)


async def _together(coroutines: Any) -> None:
    """Wait for all; if one fails, or the wait is cancelled, end the others first."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


class _Barrier:
    """All workers leave together; asyncio has a barrier since Python 3.11 only."""

    def __init__(self, parties: int) -> None:
        self._missing, self._is_whole = parties, asyncio.Event()

    async def wait(self) -> None:
        """Wait for the others."""
        self._missing -= 1
        if not self._missing:
            self._is_whole.set()
        await self._is_whole.wait()
