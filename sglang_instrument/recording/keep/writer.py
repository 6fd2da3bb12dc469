"""Empty the buffer every 50 to 100 ms, encode its spans, and pass the lines to the disk's thread.

There are two threads because they fail differently: the encoder's thread never touches a file, so a disk that
hangs cannot stop it from emptying the buffer. The queue to the disk is limited in bytes; records above the
limit are dropped and counted.
"""

import math
import time
from _thread import TIMEOUT_MAX
from collections.abc import Callable
from typing import Final

from sglang_instrument.recording.keep.disk import Disk, Job
from sglang_instrument.recording.keep.encoder import LineEncoder
from sglang_instrument.recording.keep.selection import Selection
from sglang_instrument.recording.keep.wakeup import Wakeup, WakingBuffer
from sglang_instrument.recording.measure import spans as hot
from sglang_instrument.recording.measure.context import count_dropped, on_scope_closed, take_ended
from sglang_instrument.recording.measure.scopes import Scope, scopes
from sglang_instrument.recording.measure.spans import OFF, Buffer, Span, use_buffer
from sglang_instrument.recording.safety.notices import log_swallowed, notice
from sglang_instrument.recording.safety.own_threads import OneAtATime, OwnThread
from sglang_instrument.recording.safety.unpatched import Flag, sleep

TICK_SEC: Final = 0.05
# With few records, waking two threads costs more than the records, and takes the GIL from training: so they
# are written half as often, which keeps the loss at a SIGKILL well below its limit.
CALM_TICK_SEC: Final = 0.1
_LITTLE: Final = 500  # spans a tick
_RESTS_AFTER: Final = 10  # ticks without a record
_BATCH: Final = 4096  # spans taken out of the buffer at once: few enough for the processor's cache
MOST_SPANS: Final = 200_000  # in the buffer; reached only if the program never lets the encoder's thread run


class Writer:
    """The buffer of spans, and the encoder's thread that empties it.

    Args:
        disk: Takes the lines.
        encoder: Makes the lines.
        watch: Called at each tick with the disk; reports spans that do not end. Returns for how many seconds
            it need not be called while nothing is recorded.
        selection: Decides which records are kept; None keeps all.
        young_sec: For so long after its start the encoder's thread does the disk's work, too. A forked child
            may live for milliseconds, in which a second thread would cost more than all records.
    """

    def __init__(
        self,
        disk: Disk,
        encoder: LineEncoder,
        watch: Callable[[Disk], float],
        selection: Selection | None = None,
        young_sec: float = 0.0,
    ) -> None:
        self.disk = disk
        self._young_sec = young_sec
        self._young_until = 0.0
        self.dropped_records = 0
        self.changed_records = 0
        self.recorded = 0
        self._encoder = encoder
        self._watch = watch
        self._selection = selection
        self._spans: list[Span] = []
        self._encoding = 0  # spans taken out of the buffer, and not encoded yet
        self._buffer: Buffer = self._spans  # in use once the threads run
        self._wakeup = Wakeup()
        # Called when the last open span ends.
        self._all_closed: Callable[[], object] | None = self._wakeup.wake
        self._starting = OneAtATime()  # starting the threads, or writing without them
        self._thread = OwnThread(self._run, "sglang_instrument-writer", is_bare=young_sec > 0)
        self._gives_up_at = math.inf  # time.monotonic() at which a caller that writes itself stops
        self._flushes: list[tuple[Job | None, Flag]] = []
        self._tick_sec = TICK_SEC
        self._skipped_last_tick = True  # whether the last tick wrote nothing; the first tick always writes
        self._most_ticks = 1  # ticks to sleep while nothing is recorded; 0 while the thread computes it
        self._quiet_ticks = 0  # since something was recorded
        self._closed = False
        self._ended = False

    def open(self) -> None:
        """Accept spans from now on; the first span that opens or ends starts the threads."""
        use_buffer(WakingBuffer(self.take), self.start, self._all_closed)
        on_scope_closed(self.step_ended)

    def wrap_buffer(self, wrapping: Callable[[Buffer], Buffer]) -> None:
        """Send spans through `wrapping(buffer)` instead of to the buffer; call it before `open()`."""
        self._buffer = wrapping(self._buffer)

    def close(self, then: Buffer = OFF) -> None:
        """Accept no more spans; `then` gets them."""
        with self._starting.lock:  # another thread may be about to start the threads for its first span
            self._stop_taking(then)

    def _stop_taking(self, then: Buffer) -> None:
        use_buffer(then)
        on_scope_closed(None)
        self._closed = True

    def end(self, ends: float) -> None:
        """End both threads after their remaining work; wait for that until `ends` at most."""
        self._ended = True
        self._wakeup.wake()
        if self.disk.started or not self.started:  # else the encoder's thread may wait for the disk
            self.disk.end()
        self._thread.join(ends)
        self.disk.join(ends)

    def start(self) -> None:
        """Start the threads, once; several threads may call this at the same time."""
        if not self.started:
            self._starting.do(self._start_threads, "starting the writer's threads", 0.0)

    def _start_threads(self) -> None:
        if not self._closed and self._have_threads():
            self._take_directly()

    def _have_threads(self, at_once: bool = False) -> bool:
        if self._young_sec:
            self._young_until, self._young_sec = time.monotonic() + self._young_sec, 0.0
        # The disk's thread first: without it the encoder's thread would write to the disk itself.
        return (self._is_young() or self.disk.start(at_once)) and self._thread.start(at_once)

    def _is_young(self) -> bool:
        return not self.disk.started and (self._closed or time.monotonic() < self._young_until)

    def _take_directly(self) -> None:
        # While the encoder's thread may wait for the disk, callers of `take` bound the buffer.
        if not self._closed and self.disk.started and isinstance(hot.current_buffer(), WakingBuffer):
            use_buffer(self._buffer, None, self._all_closed)

    def take(self, span: Span) -> None:
        """Take a span that came while the threads were not started, or while the encoder's thread rested."""
        self.be_awake()
        if self._closed:
            return
        self._buffer.append(span)
        if not self.disk.started and len(self._spans) > MOST_SPANS:
            self._starting.do(self._drop_excess, "dropping records", 0.0)

    def be_awake(self) -> None:
        """Start the threads, or wake the encoder's resting thread; from now on it runs at each tick."""
        self.start()
        if not self.started:
            return
        if not isinstance(hot.current_buffer(), WakingBuffer):
            if self._most_ticks != 1:
                self._most_ticks = 1  # so only the first of many callers wakes the thread
                self.wake()
            return
        self._quiet_ticks = 0
        self._starting.do(self._take_directly, "waking the writer", 0.0)  # else another thread does it
        if self.disk.started:
            self.wake()

    def _next_tick_sec(self, is_little: bool, leave_sec: float) -> float:
        """Return how long to sleep: depends on how many spans came, and how long `watch` may be skipped."""
        if not is_little or leave_sec < CALM_TICK_SEC:
            return TICK_SEC
        return leave_sec if self._quiet_ticks >= _RESTS_AFTER and self._may_rest() else CALM_TICK_SEC

    def _ticks_to_leave(self, leave_sec: float) -> int:
        """Return for how many ticks to sleep if nothing is recorded; this does not delay resting.

        A wrapped buffer may hold spans back, which need a check at each tick.
        """
        if self._buffer is not self._spans:
            return 1
        return max(1, min(round(leave_sec / self._tick_sec), _RESTS_AFTER - self._quiet_ticks))

    def _may_rest(self) -> bool:
        """Let the next span that ends, or the first that opens, wake this thread; return whether it will.

        So no thread of this package runs between two rollouts.
        """
        with self._starting.lock:
            if not self._closed and hot.current_buffer() is self._buffer:
                use_buffer(WakingBuffer(self.take), self.be_awake, self._all_closed)
        # A span that another thread appends right now shows here; if not, it waits until the next tick.
        is_waking = isinstance(hot.current_buffer(), WakingBuffer)
        return is_waking and self.disk.started and not self._spans

    def wake(self) -> None:
        """Wake the encoder's thread now, not at its next tick: these may be the process's last records."""
        self._wakeup.wake()

    def step_ended(self) -> None:
        """Have `step_closed` written: the last block of a step has ended."""
        self.wake()

    def flush(self, timeout_sec: float) -> bool:
        """Write all records so far; return whether that was done in time."""
        return self.flush_then(None, timeout_sec)

    def flush_then(self, job: Job | None, timeout_sec: float) -> bool:
        """Write all records so far, then run `job`, if any; return whether that was done in time.

        If no thread can be started, the caller writes, and checks the time after each batch of spans.
        """
        wait_sec, done = max(0.0, min(timeout_sec, TIMEOUT_MAX)), Flag()
        ends = time.monotonic() + wait_sec
        if not self.started:
            self._starting.do(lambda: self._start_or_write(job, done, ends), "writing the log", wait_sec)
        if self.started and not done.is_set():
            self._flushes.append((job, done))
            self._wakeup.wake()
        return done.wait(max(0.0, ends - time.monotonic()))

    def _start_or_write(self, job: Job | None, done: Flag, ends: float) -> None:
        if self._spans and self._have_threads(at_once=True):
            self._take_directly()
        if self.started:
            return
        self._gives_up_at = ends
        try:
            self._write()
            if time.monotonic() < ends:
                self._finish_flush(job, done)
            self.disk.do_what_waits()
        finally:
            self._gives_up_at = math.inf

    def _finish_flush(self, job: Job | None, done: Flag) -> None:
        if job is not None:
            self.disk.do(job)
        self.disk.do(done.set)

    @property
    def started(self) -> bool:
        """Whether the threads run: the first span starts them."""
        return self._thread.started

    @property
    def waiting(self) -> int:
        """How many spans are not encoded yet."""
        return len(self._spans) + self._encoding

    @property
    def sampled_out_records(self) -> int:
        """How many records of fast requests outside the sample were left out."""
        return 0 if self._selection is None else self._selection.sampled_out

    def _run(self) -> None:
        while not self._ended:
            try:
                self._tick(self._wait())
            except BaseException as error:
                log_swallowed("encoding the log", error)
                sleep(TICK_SEC)  # in case the wait itself failed

    def _wait(self) -> bool:
        """Wait for the next tick with work; return whether a wake-up ended the wait."""
        ticks = self._wakeup.wait(self._tick_sec, max(1, self._most_ticks), self._spans)
        self._quiet_ticks += max(0, ticks - 1)  # _tick() counts the last one
        return ticks == 0

    def _tick(self, woken: bool) -> None:
        if not self.disk.started and not self._is_young() and self.disk.start():
            self._starting.do(self._take_directly, "starting the writer's threads", 0.0)
        asked = len(self._flushes)  # before the buffer is emptied: later flushes may want later records
        is_little = len(self._spans) <= _LITTLE
        may_pass = is_little and self._tick_sec < CALM_TICK_SEC and not (woken or asked)
        self._skipped_last_tick = may_pass and not self._skipped_last_tick
        self._quiet_ticks = 0 if self._spans else self._quiet_ticks + 1
        if not self._skipped_last_tick:
            self._write()
        self._most_ticks = 0  # the watch below may miss an event loop that appears from now on
        leave_sec = self._watch(self.disk)
        self._tick_sec = self._next_tick_sec(is_little, leave_sec)
        self._most_ticks = self._ticks_to_leave(leave_sec)
        for job, done in self._flushes[:asked]:
            self._finish_flush(job, done)
        del self._flushes[:asked]
        self.disk.do_what_waits()

    def _write(self) -> None:
        """Encode the buffer's spans, then close the steps that had ended before."""
        ended = [scope for scope in scopes() if scope.ended]
        self._drop_excess()
        self._empty_buffer()
        if time.monotonic() >= self._gives_up_at:
            return  # a step whose records still wait is not complete
        for scope in ended:
            if take_ended(scope):
                self._close_step(scope)
        if ended:
            self.disk.do(self.disk.files.close_old_steps)
        if self._closed and self._selection is not None:
            self._encode(self._selection.end())

    def _empty_buffer(self) -> None:
        for _ in range(2):  # the second pass takes spans that came during the first; later ones wait
            waiting = len(self._spans)
            while waiting > 0 and time.monotonic() < self._gives_up_at:
                batch = self._spans[: min(waiting, _BATCH)]
                del self._spans[: len(batch)]
                waiting -= len(batch)
                self._encode(batch if self._selection is None else self._selection.keep(batch))

    def _close_step(self, scope: Scope) -> None:
        if self._selection is not None:
            self._encode(self._selection.end_step(scope))
        self.disk.do(lambda: self.disk.files.close_step(scope))

    def _drop_excess(self) -> None:
        """Drop the newest spans above the buffer's limit."""
        excess = self._spans[MOST_SPANS:]
        if excess:
            del self._spans[MOST_SPANS : MOST_SPANS + len(excess)]
            for span in excess:
                count_dropped(self._encoder.scope_of(span.context), 1)
            self.dropped_records += len(excess)
            notice("buffer full", "spans come too fast to be encoded: new records are dropped and counted")

    def _encode(self, spans: list[Span]) -> None:
        """Pass spans on as lines, with a pause after each chunk."""
        self._encoding, done = len(spans), 0
        while done < len(spans):
            begin, recorded = done, self.recorded
            try:
                done, pieces = self._encoder.encode_chunk(spans, begin)
            except Exception as error:  # no single record is at fault: memory has run out
                log_swallowed("encoding the log", error)
                done, pieces = len(spans), []
            for scope, encoded, changed, records in pieces:
                try:
                    self.disk.write(scope, encoded, records)
                except Exception as error:  # as above
                    log_swallowed("passing lines to the disk's thread", error)
                    continue
                self.changed_records += changed
                self.recorded += records
            self.disk.do_what_waits()
            self.dropped_records += done - begin - (self.recorded - recorded)
            self._encoding = len(spans) - done
            if self._encoding or self._spans:
                sleep(0)  # give the GIL to a waiting thread now, not after the interpreter's 5 ms
