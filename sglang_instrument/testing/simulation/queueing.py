"""Serve the calls of requests as an engine does: it queues, prefills, and decodes slower with more to do."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sglang_instrument.analysis.timing import processor_sharing
from sglang_instrument.analysis.timing.processor_sharing import Served


@dataclass(frozen=True)
class Engine:
    """How fast an engine is; the default one is as fast with many requests as with one.

    Attributes:
        token_sec: Seconds a token of a request that runs alone.
        load_sec: Seconds a token more for each running request, itself included.
        prefill_sec: Seconds of prefill a token of the prompt.
        call_sec: Seconds of prefill a call more, however long its prompt is.
        most_running: Most requests that run at once; the others queue in the order of their arrival.
        shared: Whether all workers call one engine; otherwise each has its own.
    """

    token_sec: float = 0.02
    load_sec: float = 0.0
    prefill_sec: float = 0.0
    most_running: int | None = None
    shared: bool = False
    call_sec: float = 0.0

    def times(self, factor: float) -> "Engine":
        """Return an engine that takes `factor` times as long for everything but the queue."""
        return replace(
            self,
            token_sec=self.token_sec * factor,
            load_sec=self.load_sec * factor,
            prefill_sec=self.prefill_sec * factor,
            call_sec=self.call_sec * factor,
        )


@dataclass
class EngineState:
    """What is out of the ordinary with an engine in one step.

    Attributes:
        factor: It takes this many times as long.
        stalls: From when to when it stands still, in seconds after the start of generation; they may overlap.
    """

    factor: float = 1.0
    stalls: list[tuple[float, float]] = field(default_factory=list)


class SimulatedCall(NamedTuple):
    """A call of an engine, made at `at_sec`.

    `work` is in tokens, and counts those of a slow call more than once; for `extra_sec` the call stays in the
    engine before its first token.
    """

    at_sec: float
    prompt_tokens: int
    work: float
    extra_sec: float = 0.0


#: A request: it yields its calls, and is sent when each was served.
Caller = Generator[SimulatedCall, Served, None]


def serve(engine: Engine, state: EngineState, begin: float, callers: Iterable[Caller]) -> None:
    """Run the callers to their ends at one engine; the state's times count from `begin`."""
    engine = engine.times(state.factor)
    stalls = merged([(begin + start, begin + end) for start, end in state.stalls])
    rules = processor_sharing.SharingRules(
        engine.token_sec, engine.load_sec, engine.most_running, stalls=stalls
    )
    processor_sharing.serve((_prefilled(engine, caller) for caller in callers), rules)


def _prefilled(engine: Engine, caller: Caller) -> processor_sharing.Caller:
    """Make the calls of a caller, each with what its prefill takes this engine."""
    call = next(caller, None)
    while call is not None:
        prefill_sec = engine.call_sec + call.prompt_tokens * engine.prefill_sec
        served = yield processor_sharing.SharedCall(call.at_sec, prefill_sec + call.extra_sec, call.work)
        try:
            call = caller.send(served)
        except StopIteration:
            return


def merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return spans in order, those that overlap as one."""
    apart: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if apart and start <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(end, apart[-1][1])
        elif start < end:
            apart.append((start, end))
    return apart
