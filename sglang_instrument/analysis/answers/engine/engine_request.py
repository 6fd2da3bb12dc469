"""Know what the engine's processes did for one request, and split its time into parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final


@dataclass
class EngineRequest:
    """What the engine's processes did for one request; times are microseconds."""

    rid: str
    #: From 2 on, where a client uses the id of a request that has ended for another one.
    use: int = 1
    server: str | None = None
    scheduler: str | None = None
    arrived: int | None = None
    called: int | None = None
    answered: int | None = None
    finished: int | None = None
    detokenized: int | None = None
    tokenize_sec: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    cached_host_tokens: int | None = None
    cached_storage_tokens: int | None = None
    completion_tokens: int | None = None
    verifications: int | None = None
    finish_reason: str | None = None
    aborted_at_tokens: int | None = None
    retracted_tokens: int | None = None
    is_of_list: bool = False
    room: int | None = None
    bootstrapped: int | None = None
    #: The half of another server, which read the prompt and sent its cache.
    read_by: EngineRequest | None = None
    transitions: list[tuple[int, str]] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """Return a row of `engine_requests`."""
        reader = self.read_by or self
        end = _first_known(self.answered, self.detokenized, self.finished)
        spent = self._spent(_first_known(self.finished, self.detokenized, end))
        start = _earliest(self.called, self.arrived, reader.called, reader.arrived)
        return {
            "rid": self.name,
            "server": self.server,
            "scheduler": self.scheduler,
            "prefill_server": self.read_by and _first_known(self.read_by.server, self.read_by.scheduler),
            "prefill_rid": self.read_by and self.read_by.name,
            "start_us": start,
            "end_us": end,
            "duration_sec": None if start is None or end is None else max(0, end - start) / 1e6,
            "tokenize_sec": _first_known(reader.tokenize_sec, self.tokenize_sec),
            "prompt_tokens": _first_known(reader.prompt_tokens, self.prompt_tokens),
            "cached_tokens": _first_known(reader.cached_tokens, self.cached_tokens),
            "cached_host_tokens": _first_known(reader.cached_host_tokens, self.cached_host_tokens),
            "cached_storage_tokens": _first_known(reader.cached_storage_tokens, self.cached_storage_tokens),
            "bootstrap_sec": reader.bootstrap_sec,
            "completion_tokens": self._generated,
            "verifications": self.verifications,
            "finish_reason": self.finish_reason,
            "retracted_tokens": self.retracted_tokens,
            "retractions": None if self.arrived is None else self._retractions,
            **spent,
        }

    @property
    def _generated(self) -> int | None:
        """Its tokens; those until its abort, if it was aborted and its caller did not wait for the end."""
        if self.completion_tokens is not None or self.aborted_at_tokens is None:
            return self.completion_tokens
        return max(0, self.aborted_at_tokens - (self.prompt_tokens or 0))

    @property
    def _retractions(self) -> int:
        return sum(what == "retract" for _, what in self.transitions)

    @property
    def bootstrap_sec(self) -> float | None:
        """From its arrival until the server that writes the reply had room for it."""
        if self.arrived is None or self.bootstrapped is None:
            return None
        return max(0, self.bootstrapped - self.arrived) / 1e6

    @property
    def is_unknown_to_engine(self) -> bool:
        """Whether only the caller's list names it: the engine gives each of several samples another name."""
        return self.is_of_list and self.arrived is None and self.detokenized is None and self.finished is None

    @property
    def name(self) -> str:
        """Its id, which another request of the same id does not have: `r7`, then `r7 (2)`."""
        return self.rid if self.use == 1 else f"{self.rid} ({self.use})"

    @property
    def is_ended(self) -> bool:
        """Whether any process logged its end."""
        return self._end is not None

    @property
    def _end(self) -> int | None:
        ends = (self.answered, self.finished, self.detokenized)
        return max((time for time in ends if time is not None), default=None)

    def is_over_before(self, moment: int) -> bool:
        """Whether it had ended then, or at least had its first token, where its scheduler logs no ends.

        An aborted one is not over: its client may go on with it after an update of the weights.
        """
        if self.finish_reason == "abort":
            return False
        if self._end is not None:
            return self._end < moment
        return any(what == "first" and at_us < moment for at_us, what in self.transitions)

    def distance_us(self, moment: float) -> float:
        """Return how far a moment lies from its life, 0 within."""
        begin = _earliest(self.called, self.arrived)
        before = 0.0 if begin is None else begin - moment
        return max(0.0, before, 0.0 if self._end is None else moment - self._end)

    def _spent(self, end: int | None) -> dict[str, float | None]:
        """Split the time from arrival to end into its parts, and what a retraction cost.

        A chunked prompt is admitted several times before its first token; the time between chunks is part of
        the prefill. A retracted request queues, is admitted and is prefilled again: that is the retraction.
        """
        arrived = _earliest(self.arrived, self.read_by.arrived if self.read_by else None)
        if arrived is None:
            return {}
        spent: dict[str, int] = {}
        doing, since = "queue", arrived
        ordered = self._ordered()
        after = _NEXT_APART if self._is_apart else _NEXT
        for (moment, what), (_, then) in zip(ordered, [*ordered[1:], (0, "")], strict=False):
            if (what, then) == ("first", "admit"):
                continue  # a chunk of a prompt ended, without a token
            spent[doing] = spent.get(doing, 0) + max(0, moment - since)
            doing = "retracted" if (doing, what) == ("retracted", "admit") else after[what]
            since = max(moment, since)
        if doing in ("prefill", "retracted") and self.completion_tokens:
            spent.pop(doing, None)  # a killed scheduler did not write the record of its first token
        elif end is not None:
            spent[doing] = spent.get(doing, 0) + max(0, end - since)
        return {f"{kind}_sec": spent[kind] / 1e6 if kind in spent else None for kind in _SPENT}

    @property
    def _is_apart(self) -> bool:
        """Whether one server read its prompt, and another one wrote its reply."""
        if self.read_by is not None or self.bootstrapped is not None:
            return True
        return any(what in ("preallocate", "transfer", "prebuilt") for _, what in self.transitions)

    def _ordered(self) -> list[tuple[int, str]]:
        """Return what happened to it in the order of time, on both servers if two worked on it.

        What its cache is sent for has happened before it arrived, whatever the clocks of the two say.
        """
        mine, reader = self.transitions, self.read_by
        if reader is not None and reader.arrived is not None:
            mine = [(moment, what) for moment, what in mine if what != "preallocate"]
            received = min((moment for moment, what in mine if what == "transfer"), default=None)
            read = [(_earliest(moment, received) or moment, what) for moment, what in reader.transitions]
            mine = [*read, *mine]
        return sorted(mine, key=lambda transition: (transition[0], _ORDER.index(transition[1])))


def _first_known(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _earliest(*times: int | None) -> int | None:
    return min((time for time in times if time is not None), default=None)


_SPENT: Final = ("queue", "prefill", "transfer", "decode", "retracted")
#: What a request does after each transition.
_NEXT: Final = {"admit": "prefill", "first": "decode", "retract": "retracted"}
#: The same where one server reads prompts and another writes replies. If the reader logged nothing, its work
#: lies in the transfer.
_NEXT_APART: Final = {
    "preallocate": "transfer",
    "admit": "prefill",
    "first": "transfer",
    "transfer": "queue",
    "prebuilt": "decode",
    "retract": "retracted",
}
#: Transitions at the same moment happened in this order.
_ORDER: Final = ("preallocate", "admit", "first", "transfer", "prebuilt", "retract")
