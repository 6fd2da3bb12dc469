"""Run a server's batches in SGLang's order: prefills, then decodes; retract where the cache is full.

Between two events of a batch nothing changes but lengths, so many decodes are one jump in time.
Source: `sglang/srt/managers/scheduler.py` (get_next_batch_to_run, _get_new_batch_prefill_raw,
update_running_batch) and `schedule_batch.py` (retract_decode), of SGLang 0.5.21.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from sglang_instrument.testing.world.serving.admission import (
    RETRACT_STEPS,
    Admission,
    Admitted,
    NewTokenRatio,
)
from sglang_instrument.testing.world.serving.calls import Call, ServerShape
from sglang_instrument.testing.world.serving.clock import Process, Signal, SimulatedClock
from sglang_instrument.testing.world.serving.pace import Pace
from sglang_instrument.testing.world.serving.prefix_cache import RadixTree, Segment

Log = Callable[[str, float, float, dict[str, Any]], None]
GAUGE_SEC: Final = 1.0
_SMALL_SEC: Final = 0.0002  # of the scheduler's own bookkeeping


class Command(NamedTuple):
    """What the scheduler does between two batches, such as an update of the weights."""

    event: str
    sec: float
    extra: dict[str, Any]
    done: Signal


class WorldScheduler:
    """The scheduler of a server: a queue, a running batch, a cache.

    Attributes:
        shape: Its settings; a fault may replace them while it runs.
        decode_pace, prefill_pace: How fast its machine decodes and prefills.
        free: Free tokens of the cache; the rest is in the tree or held by calls.
    """

    def __init__(
        self, clock: SimulatedClock, shape: ServerShape, decode_pace: Pace, prefill_pace: Pace, log: Log
    ) -> None:
        self.clock, self.shape, self.log = clock, shape, log
        self.decode_pace, self.prefill_pace = decode_pace, prefill_pace
        self.cache, self.free = RadixTree(shape.caches), shape.kv_tokens
        self.ratio = NewTokenRatio(shape.conservativeness)
        self.waiting: list[Call] = []
        self.running: list[Call] = []
        self.commands: deque[Command] = deque()
        self._chunked: Call | None = None
        self._is_full = False
        self._wake = Signal()
        self._gauge_due = 0.0

    def receive(self, call: Call) -> None:
        """Put a call into the queue."""
        call.received = self.clock.now
        self.waiting.append(call)
        extra = {"rid": call.rid, "prompt_tokens": call.prompt_tokens, "waiting": len(self.waiting)}
        self.log("scheduler_receive", self.clock.now, self.clock.now + _SMALL_SEC, extra)
        if not self._is_full:
            self._wake.fire()

    def command(self, event: str, sec: float, **extra: Any) -> Signal:
        """Do something between two batches; return its end."""
        done = Signal()
        self.commands.append(Command(event, sec, extra, done))
        self._wake.fire()
        return done

    def abort(self, calls: list[Call]) -> None:
        """Abort calls: those in the queue end at once, those that run with the decode that runs."""
        here = [call for call in calls if not call.done.fired]
        stopped = [call for call in here if call in self.running]
        if stopped:
            extra = {"rids": [call.rid for call in stopped], "tokens": [call.context for call in stopped]}
            self.log("scheduler_abort", self.clock.now, self.clock.now + _SMALL_SEC, extra)
        for call in here:
            call.aborted = True
            if call in self.waiting:
                self.waiting.remove(call)
                call.done.fire()
        self._wake.fire()

    def run(self) -> Process:
        """Run batches, for ever."""
        while True:
            self._wake = Signal()
            if self.commands:
                yield from self._obey(self.commands.popleft())
            elif (admission := self._admission()) is not None:
                yield from self._prefill(admission)
            elif self.running:
                yield from self._decode()
            else:
                if self.waiting and not self._is_full:
                    raise RuntimeError(f"{self.waiting[0].rid} fits into no empty cache: {self.shape}")
                self._is_full = False
                self.ratio.reset()
                if not self.waiting:
                    yield self._wake

    def _obey(self, command: Command) -> Process:
        begin = self.clock.now
        yield begin + command.sec
        extra = dict(command.extra)
        if command.event == "engine_cache_flush":
            extra["success"] = not self.running and not self.waiting
            self.free += self.cache.flush() if extra["success"] else 0
        self.log(command.event, begin, self.clock.now, extra)
        command.done.fire()

    def _admission(self) -> Admission | None:
        """Return the next prefill; None if there is nothing to prefill, or no room."""
        if (self._is_full or not self.waiting) and self._chunked is None:
            return None
        room = self.shape.max_running - len(self.running)
        if room <= 0 and self._chunked is None:
            self._is_full = True
            return None
        admission = Admission(self.shape, self.cache, self.free, self.running, self.ratio.current)
        if self._chunked is not None:
            admission.go_on_with(self._chunked)
        for call in self.waiting:
            if len(admission.admitted) >= room:
                self._is_full = True
            if self._is_full or admission.chunked is not None:
                break
            answer = admission.add(call)
            if answer is Admitted.NO_TOKEN:
                self._is_full = True
            if answer is not Admitted.GO_ON:
                break
        self._chunked = admission.chunked
        return admission if admission.admitted else None

    def _prefill(self, admission: Admission) -> Process:
        begin, tokens = self.clock.now, 0
        calls = {id(call) for call, _ in admission.admitted}
        self.waiting = [call for call in self.waiting if id(call) not in calls]
        for call, piece in admission.admitted:
            tokens += piece
            self._take(piece)
            call.held += piece
            call.prefilled += piece
            call.admitted = min(call.admitted, begin)
            if call.cached_tokens is None:
                call.cached_tokens = call.prefix
        extra = {
            "rids": [call.rid for call, _ in admission.admitted],
            "nodes": [call.node.number if call.node else 0 for call, _ in admission.admitted],
            "waiting": len(self.waiting),
            "running": len(self.running),
            "tokens": tokens,
        }
        self.log("scheduler_admit", begin, begin + _SMALL_SEC, {**extra, **self._kv(self.free)})
        self._gauge(begin, len(admission.admitted), "EXTEND", self.free)
        yield self.prefill_pace.end_of(begin, self._prefill_sec(tokens))
        self._prefilled([call for call, _ in admission.admitted if call is not admission.chunked])

    def _prefill_sec(self, tokens: int) -> float:
        return self.shape.prefill_sec + tokens * self.shape.prefill_token_sec

    def _prefilled(self, calls: list[Call]) -> None:
        now = self.clock.now
        for call in calls:
            self._keep_prompt(call)
            call.made += 1
            call.first = min(call.first, now)
        if calls:
            extra = {
                "rids": [call.rid for call in calls],
                "nodes": [call.node.number if call.node else 0 for call in calls],
            }
            self.log("scheduler_first_tokens", now - _SMALL_SEC, now, extra)
        self.running += calls
        self._end_those_done()

    def _keep_prompt(self, call: Call) -> None:
        """Move a prompt that is computed into the tree; what another call put there meanwhile is freed."""
        if not self.cache.enabled or call.node is None:
            return
        computed = max(0, call.prompt_tokens - call.prefix)
        node, new = self.cache.insert(call.path)
        self.cache.lock(node)
        self.cache.unlock(call.node)
        call.node = node
        call.held -= computed
        self.free += computed - new

    def _decode(self) -> Process:
        if self.free + self.cache.evictable < len(self.running):
            self._retract()
        begin, count, free = self.clock.now, len(self.running), self.free
        steps = min(call.reply_tokens - call.made for call in self.running)
        steps = max(1, min(steps, (self.free + self.cache.evictable) // count))
        end = self.decode_pace.end_of(begin, self._decode_sec(steps))
        yield end, self._wake
        if self.clock.now < end:  # a call came, or a command: the decode that runs ends first
            work = self.decode_pace.work_in(begin, self.clock.now)
            steps = min(steps, self._steps_in(work))
            end = self.decode_pace.end_of(begin, self._decode_sec(steps))
            if end > self.clock.now:
                yield end
        self._gauges(begin, end, count, free, steps)
        self._take(steps * count)
        for call in self.running:
            call.made += steps
            call.held += steps
        self.ratio.decode(steps)
        self._end_those_done()

    def _decode_sec(self, steps: int) -> float:
        """Return the seconds of so many decodes: the context grows with each of them."""
        shape, count = self.shape, len(self.running)
        context = sum(call.context for call in self.running)
        first = shape.decode_sec + shape.decode_request_sec * count + shape.decode_token_sec * context
        return steps * first + shape.decode_token_sec * count * steps * (steps - 1) / 2

    def _steps_in(self, work_sec: float) -> int:
        """Return the number of decodes until the one that runs after so many seconds of work has ended."""
        growth = self.shape.decode_token_sec * len(self.running) / 2
        first = self._decode_sec(1) - growth
        steps = (
            work_sec / first
            if growth <= 0
            else (math.sqrt(first * first + 4 * growth * work_sec) - first) / (2 * growth)
        )
        return max(1, math.ceil(steps - 1e-9))

    def _end_those_done(self) -> None:
        ended = [call for call in self.running if call.aborted or call.made >= call.reply_tokens]
        if ended:
            self.running = [call for call in self.running if call not in ended]
            self._is_full = False
        for call in ended:
            self._release(call)
            call.done.fire()

    def _release(self, call: Call) -> None:
        """Give a call's tokens back: the reply stays in the tree, without its last token."""
        if call.node is None:
            return
        if self.cache.enabled:
            path = [*call.path, Segment(call.reply_key, call.made - 1)] if call.made > 1 else call.path
            _, new = self.cache.insert(path)
            self.free -= new
        self.cache.unlock(call.node)
        self.free += call.held
        call.node, call.held = None, 0

    def _retract(self) -> None:
        """Send calls back to the queue, those with the fewest tokens first, until a decode fits."""
        ordered = sorted(self.running, key=lambda call: (call.made, -call.prompt_tokens), reverse=True)
        sent_back: list[Call] = []
        while len(ordered) > 1 and (not sent_back or self.free + self.cache.evictable < len(ordered)):
            call = ordered.pop()
            if call.node is not None:
                self.cache.unlock(call.node)
            self.free += call.held
            call.node, call.held, call.prefilled = None, 0, 0
            call.retractions += 1
            sent_back.append(call)
            self._make_room(len(ordered) * RETRACT_STEPS)
        self.running = [call for call in self.running if call not in sent_back]
        self.ratio.after_retraction(self.running)
        self._is_full = False
        extra = {
            "rids": [call.rid for call in sent_back],
            "tokens": [call.context for call in sent_back],
            "running": len(self.running),
        }
        self.log("scheduler_retract", self.clock.now, self.clock.now + _SMALL_SEC, extra)
        self.waiting += sent_back

    def _take(self, tokens: int) -> None:
        self._make_room(tokens)
        self.free -= tokens

    def _make_room(self, tokens: int) -> None:
        if self.free < tokens and self.cache.evictable:
            self.free += self.cache.evict(tokens - self.free)

    def _kv(self, free: int) -> dict[str, int]:
        kv = {"kv_tokens": self.shape.kv_tokens, "kv_free_pages": max(0, free)}
        return {**kv, "kv_evictable": self.cache.evictable, "kv_page_size": 1}

    def _gauge(self, time_sec: float, batch_size: int, mode: str, free: int) -> None:
        if time_sec < self._gauge_due:
            return
        self._gauge_due = time_sec + GAUGE_SEC
        sizes = {"running": len(self.running), "waiting": len(self.waiting), "batch_size": batch_size}
        self.log("scheduler_gauges", time_sec, time_sec, {**sizes, "forward_mode": mode, **self._kv(free)})

    def _gauges(self, begin: float, end: float, count: int, free: int, steps: int) -> None:
        """Log the gauges of some decodes: of the first batch that begins a second after the last gauge."""
        while (due := max(begin, self._gauge_due)) < end:
            done = self._steps_in(self.decode_pace.work_in(begin, due)) if due > begin else 0
            time_sec = self.decode_pace.end_of(begin, self._decode_sec(done)) if done else begin
            if done >= steps:
                return
            self._gauge(max(due, time_sec), count, "DECODE", free - done * count)
