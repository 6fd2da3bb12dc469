"""Say what an agenda is: by step its requests, and by turn the tokens and the waits; no text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import ceil

from sglang_instrument.errors import InstrumentError


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the tokens of a reply were drawn; None where the log does not tell.

    Attributes:
        temperature: As asked for.
        logprobs: Whether the log-probabilities of the tokens were asked for.
        samples: How many replies to the prompt one call asked for: its tokens are those of all.
    """

    temperature: float | None = None
    logprobs: bool | None = None
    samples: int = 1


@dataclass(frozen=True, slots=True)
class AgendaTurn:
    """One call of the engine.

    Attributes:
        prompt_tokens: Of the whole prompt.
        shared_prefix_tokens: How many of them, from the first, are known before: of a first turn, as many as
            the prompts of its group begin with; of a later turn, those of the sequence so far.
        generated_tokens: Of the reply.
        wait_sec: Seconds from the end of the reply before, or from the begin of the request, to the call.
        call_sec: Seconds that the call took when it was recorded.
        server: Who served it; None if the log does not tell.
        is_aborted: Whether the reply was aborted because its worker had enough: it has the tokens that were
            generated until then, and would have had more.
        sampling: How its tokens were drawn, as far as the log tells.
        sent_sec, returned_sec: Seconds from the call to its begin at the server, and from its end at the
            server to its caller: what Ray, a load balancer or a network took. 0 where not both logged it.
    """

    prompt_tokens: int
    shared_prefix_tokens: int
    generated_tokens: int
    wait_sec: float
    call_sec: float
    server: str | None = None
    is_aborted: bool = False
    sampling: Sampling = Sampling()
    sent_sec: float = 0.0
    returned_sec: float = 0.0


@dataclass(frozen=True, slots=True)
class AgendaRequest:
    """One request, which is a closed loop: each turn begins when the one before and its wait end.

    Attributes:
        request_id, worker: As logged.
        group: The requests whose prompts begin with the same tokens.
        start_sec: Seconds from the begin of the step; a consequence, if the worker has a limit.
        turns: One after the other.
        after_sec: Seconds from the end of the last reply to that of the request.
    """

    request_id: str
    worker: int
    group: str
    start_sec: float
    turns: tuple[AgendaTurn, ...]
    after_sec: float = 0.0


@dataclass(frozen=True, slots=True)
class AgendaStep:
    """One step of a rollout: it ends with its last request, and workers wait for each other.

    Attributes:
        step: Its number.
        requests: In the order of their begin.
        limits: By worker, how many requests its client has open at most; None where it has no limit.
        is_flushed: Whether the engine's cache was emptied in the step.
        common_prefix_tokens: With how many tokens the prompts of all groups begin, as a system prompt.
        has_evictions: Whether the cache was full: a hit then tells less than what prompts share.
        enough: By worker that starts more requests than it needs, how many groups it needs: once so many are
            complete, it aborts the others.
    """

    step: int
    requests: tuple[AgendaRequest, ...]
    limits: dict[int, int | None] = field(default_factory=dict)
    is_flushed: bool = False
    common_prefix_tokens: int = 0
    has_evictions: bool = False
    enough: dict[int, int] = field(default_factory=dict)

    @property
    def turns(self) -> Iterator[AgendaTurn]:
        """All turns of all requests."""
        return (turn for request in self.requests for turn in request.turns)


@dataclass(frozen=True)
class Agenda:
    """The steps of a rollout, as often as they are iterated; one of them is in memory at a time.

    Attributes:
        steps: Yields them.
        missing: Sentences: what the log does not tell, what that means, and what records it.
    """

    steps: Callable[[], Iterator[AgendaStep]]
    missing: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[AgendaStep]:
        """Yield the steps in order."""
        return self.steps()


def thinned(agenda: Agenda, every: int = 1, server: str | None = None) -> Agenda:
    """Return an agenda with a part of the requests, for a smaller machine.

    Args:
        agenda: What is thinned.
        every: Keep each so many-th group of a step, and the limits of the clients in proportion.
        server: Keep only requests that this server served first.

    Raises:
        InstrumentError: `every` is less than 1.
    """
    if every < 1:
        raise InstrumentError(f"an agenda keeps every 1st, 2nd, 3rd ... group, got {every}")
    note = []
    if every > 1:
        note.append(
            f"1 of {every} groups is played: the load of each server is that of {every} times as many servers"
        )
    if server is not None:
        note.append(f"only requests of {server} are played: the twin is one server's share, and needs one")

    def steps() -> Iterator[AgendaStep]:
        for step in agenda:
            groups = list(dict.fromkeys(request.group for request in step.requests))
            wanted = set(groups[::every])
            requests = tuple(
                request
                for request in step.requests
                if request.group in wanted and server in (None, request.turns[0].server)
            )
            limits = {
                worker: None if limit is None else ceil(limit / every)
                for worker, limit in step.limits.items()
            }
            if requests:
                thin = replace(step, requests=requests, limits=limits)
                yield replace(thin, enough=_share_of(step, thin))

    return Agenda(steps, (*agenda.missing, *note))


def _share_of(step: AgendaStep, thin: AgendaStep) -> dict[int, int]:
    """Return how many groups each worker needs of those that are left, in proportion."""
    groups, left = groups_by_worker(step), groups_by_worker(thin)
    return {
        worker: max(1, round(needed * len(left[worker]) / len(groups[worker])))
        for worker, needed in step.enough.items()
        if worker in left
    }


def groups_by_worker(step: AgendaStep) -> dict[int, dict[str, int]]:
    """Return by worker its groups, each with how many of its requests it has."""
    groups: dict[int, dict[str, int]] = {}
    for request in step.requests:
        of_worker = groups.setdefault(request.worker, {})
        of_worker[request.group] = of_worker.get(request.group, 0) + 1
    return groups
