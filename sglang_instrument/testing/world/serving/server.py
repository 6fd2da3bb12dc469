"""Serve calls as the processes of an SGLang server do: tokenizer, scheduler, detokenizer; take new weights.

Source: `sglang/srt/managers/tokenizer_manager.py` (generate_request, model_update_lock), of SGLang 0.5.21;
the records are those of `patches/sglang/requests.toml`, `weights.toml` and `patches/verl/server.toml`.
"""

from typing import Any

from sglang_instrument.testing.world.serving.calls import Call, ServerShape
from sglang_instrument.testing.world.serving.clock import Places, Process, Signal, SimulatedClock, all_of
from sglang_instrument.testing.world.serving.pace import Pace
from sglang_instrument.testing.world.serving.records import RecordFiles
from sglang_instrument.testing.world.serving.scheduler import WorldScheduler


class Server:
    """A server: what its callers reach over the network.

    Attributes:
        number: Its number, which its files have.
        pace, prefill_pace: How fast its machine decodes and prefills.
        network_sec: Seconds of each way between a caller and it.
        weight_version: Version of its weights.
    """

    def __init__(
        self,
        clock: SimulatedClock,
        number: int,
        shape: ServerShape,
        records: RecordFiles,
        *,
        pace: Pace,
        prefill_pace: Pace,
        wraps: bool,
    ) -> None:
        self.clock, self.number, self.shape, self._records, self._wraps = clock, number, shape, records, wraps
        self.pace, self.prefill_pace = pace, prefill_pace
        self.network_sec, self.tokenize_sec = shape.network_sec, shape.tokenize_sec
        self.weight_version = 0
        self.scheduler = WorldScheduler(clock, shape, pace, prefill_pace, self._log_scheduler)
        self._in_flight: dict[str, Call] = {}
        self._tokenizer, self._detokenizer = Places(1), Places(1)
        self._updated: Signal | None = None
        self._idle: Signal | None = None
        clock.start(self.scheduler.run())

    def generate(self, call: Call) -> Process:
        """Serve a call, from its caller and back to it."""
        yield self.clock.now + self.network_sec
        begin = self.clock.now
        if self._updated is not None:  # its lock is held by an update
            yield self._updated
        self._in_flight[call.rid] = call
        call.weight_version = self.weight_version
        yield from self._tokenize(call)
        sent = self.clock.now
        yield sent + 0.0003
        self._log("engine_send", sent, rid=call.rid)
        waited = self.clock.now
        self.scheduler.receive(call)
        yield call.done
        yield from self._detokenize(call)
        self._log("engine_wait", waited, rid=call.rid)
        self._log("engine_request", begin, **_reply(call))
        if self._wraps:
            yield self.clock.now + 0.0002
            self._log("server_generate", begin - 0.0002, **_verl_reply(call))
        del self._in_flight[call.rid]
        if self._idle is not None and not self._in_flight:
            self._idle.fire()
        yield self.clock.now + self.network_sec

    def _tokenize(self, call: Call) -> Process:
        yield from self._tokenizer.take()
        begin = self.clock.now
        yield begin + self.tokenize_sec
        self._tokenizer.give_back()
        self._log("engine_tokenize", begin, rid=call.rid, prompt_tokens=call.prompt_tokens)

    def _detokenize(self, call: Call) -> Process:
        yield from self._detokenizer.take()
        begin = self.clock.now
        yield begin + self.shape.detokenize_sec
        self._detokenizer.give_back()
        self._records.add(
            f"engine/detokenizer_{self.number}",
            "engine_detokenize",
            begin,
            self.clock.now,
            {"rids": [call.rid]},
        )

    def update(self, version: int, transfer_sec: float, *, how: str) -> Process:
        """Take new weights.

        Args:
            version: Their version.
            transfer_sec: Seconds of the transfer.
            how: "drain" waits until all calls have ended; "abort" aborts those that run. New ones wait.
        """
        if how == "abort":
            yield from self._pause()
        updated, begin = Signal(), self.clock.now
        self._updated = updated
        if self._in_flight:
            self._idle = Signal()
            yield self._idle
            self._idle = None
            self._log("generation_drain", begin, phase="weights", part="drain")
        named = {"part": "transfer", "how": "distributed", "weight_version": version}
        yield self.scheduler.command("weights_update", transfer_sec, **named, success=True)
        yield self.scheduler.command("engine_cache_flush", 0.004, part="flush")
        self.weight_version = version
        self._updated = None
        updated.fire()
        if how == "abort":
            self._log("generation_continue", self.clock.now - 0.001, part="resume", server=self.number)

    def _pause(self) -> Process:
        begin = self.clock.now
        calls = list(self._in_flight.values())
        self.scheduler.abort(calls)
        yield from all_of([call.done for call in calls])
        self._log("generation_pause", begin, part="pause", server=self.number, mode="abort")

    def abort(self, calls: list[Call]) -> None:
        """Abort calls, as a trainer does that needs them no longer."""
        self.scheduler.abort([call for call in calls if call.rid in self._in_flight])

    def _log(self, event: str, begin: float, phase: str | None = None, **extra: Any) -> None:
        self._records.add(f"engine/server_{self.number}", event, begin, self.clock.now, extra, phase=phase)

    def _log_scheduler(self, event: str, begin: float, end: float, extra: dict[str, Any]) -> None:
        instant = event == "scheduler_gauges"
        self._records.add(f"engine/scheduler_{self.number}_tp0", event, begin, end, extra, instant=instant)


def _reply(call: Call) -> dict[str, Any]:
    return {
        "rid": call.rid,
        "requests": 1,
        "finish_reason": call.finish_reason,
        "prompt_tokens": call.prompt_tokens,
        "completion_tokens": call.made,
        "cached_tokens": call.cached_tokens or 0,
        "weight_version": str(call.weight_version),
        **({"retractions": call.retractions} if call.retractions else {}),
    }


def _verl_reply(call: Call) -> dict[str, Any]:
    names = ("rid", "prompt_tokens", "finish_reason", "completion_tokens", "cached_tokens")
    reply = _reply(call)
    return {**{name: reply[name] for name in names}, "weight_version": call.weight_version}
