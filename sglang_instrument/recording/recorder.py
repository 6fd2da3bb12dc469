"""Connect the parts of recording: one recorder exists while a session is installed."""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sglang_instrument.config import Config
from sglang_instrument.recording.keep.clock import Clock
from sglang_instrument.recording.keep.disk import Disk
from sglang_instrument.recording.keep.encoder import LineEncoder
from sglang_instrument.recording.keep.files import Files
from sglang_instrument.recording.keep.late_records import LateWriter
from sglang_instrument.recording.keep.selection import selection_for
from sglang_instrument.recording.keep.write_through import CallersDisk, LineWriter
from sglang_instrument.recording.keep.writer import Writer
from sglang_instrument.recording.measure import binding, context, gpu_sync, identity, scopes, spans, tasks
from sglang_instrument.recording.measure.buffers import OFF, Buffer
from sglang_instrument.recording.measure.spans import Span
from sglang_instrument.recording.safety.notices import log_swallowed, notice
from sglang_instrument.recording.safety.own_threads import preload_libgcc
from sglang_instrument.recording.watch import event_loop, nvtx
from sglang_instrument.recording.watch.gpu_events import HeldBack
from sglang_instrument.recording.watch.hangs import Watchdog
from sglang_instrument.recording.watch.open_now import OpenNow

if TYPE_CHECKING:
    import asyncio

LONGEST_WAIT_SEC: Final = 2.0  # for flush, uninstall and exit
_YOUNG_SEC: Final = 1.0  # of a forked child: see `Writer`
_TO_END_SEC: Final = 0.1  # of these 2 s: reserved to join the encoder's thread, which never waits for a disk


class _Parts(NamedTuple):
    """What one process records with; a forked child has its own."""

    files: Files
    disk: Disk
    encoder: LineEncoder
    writer: Writer
    watchdog: Watchdog
    open_now: OpenNow
    held_back: HeldBack


class Recorder:
    """Writes the records of this process, from `start` to `stop`.

    Args:
        config: The settings.
        describe: Returns the description of this process, for its file in `processes/`.
        launch: What is known of the launch; each file's `log_opened` has it.
    """

    def __init__(
        self,
        config: Config,
        describe: Callable[[], Mapping[str, Any]],
        launch: Mapping[str, Any] | None = None,
    ) -> None:
        self._run = {"run_id": config.run_id, **(launch or {})}
        self.config, self._folder = config, config.folder
        self._describe = describe
        self._stopped = False
        self._writer: Writer
        self._parents: set[tuple[str, int]] = set()
        self._of_child: _Parts | None = None
        self._of_parent: tuple[object, ...] = ()
        self._use(self._build())

    def start(self) -> None:
        """Accept spans from now on; the first span starts the threads and opens a file."""
        preload_libgcc()
        identity.ask_again()
        identity.use_role(self.config.role)
        gpu_sync.use_policy(self.config.sync)
        spans.log_error_messages(self.config.log_error_messages)
        spans.know_tasks(self._task_seen)
        if self.config.nvtx:
            nvtx.on()
        _let_go_of_earlier_steps()
        self._open()
        event_loop.restart_heartbeats()
        if spans.OPEN:  # one of them may be what hangs
            self._writer.start()

    def end(self) -> None:
        """Stop, because the process ends; later records are written by their callers, if the disk answers."""
        if self._stopped:
            return
        meanwhile: list[Span] = []
        if self._is_unused():
            self._stopped = True
        elif not self.stop(LONGEST_WAIT_SEC, meanwhile):
            spans.use_buffer(OFF)
            self._writer.dropped_records += len(meanwhile)
            return
        selection = selection_for(self.config, self._encoder.scope_of)
        late = LateWriter(self._files, self._encoder, selection, self._writer)
        self._writer = late
        late.open(meanwhile)

    def _is_unused(self) -> bool:
        """Return whether nothing was recorded here: a forked child may end after milliseconds."""
        writer = self._writer
        return not (writer.started or writer.waiting or writer.dropped_records or self._lost())

    def stop(self, timeout_sec: float = LONGEST_WAIT_SEC, then: Buffer = OFF) -> bool:
        """Accept no more spans, write all records, close the files; records not written in time are lost.

        Args:
            timeout_sec: For how long to wait.
            then: Gets the spans that end from now on.

        Returns:
            Whether all was written in time.
        """
        if self._stopped:
            self._writer.close()  # it may take late records
            return True
        self._stopped = True
        ends = time.monotonic() + timeout_sec
        if self.config.sync == "events":
            self._held_back.off()
        self._writer.close(then)
        gpu_sync.use_policy("off")
        if self.config.nvtx:
            nvtx.off()
        spans.ignore_tasks()
        event_loop.forget_heartbeats()
        is_written = self._writer.flush_then(self._files.close, timeout_sec - _TO_END_SEC)
        if not is_written:
            waiting = self.counts()["waiting"]
            notice("stop", f"{waiting} records were not written within {timeout_sec:g} s, and may be lost")
        self._writer.end(ends)
        return is_written

    def flush(self, timeout_sec: float = LONGEST_WAIT_SEC) -> bool:
        """Write all records so far; return whether that was done in time."""
        self._held_back.release_all()
        return self._writer.flush(timeout_sec)

    def prepare_fork(self) -> None:
        """Build what a forked child needs, once for all children: each child lives only milliseconds."""
        if self._of_child is None:
            self._of_child = self._build(inherited=self._files)

    def restart_in_child(self) -> None:
        """Start anew in a forked child, without files, claims and spans of the parent."""
        was_on = not isinstance(spans.current_buffer(), spans.Off)
        # The files of steps that the parent has bound are the parent's, even if it has not claimed them yet.
        self._parents |= self._files.claimed() | {(scope.role, scope.worker) for scope in scopes.scopes()}
        spans.OPEN.clear()
        event_loop.forget_loops()
        context.forget_all()
        binding.keep_inherited()
        identity.begin_child()
        if self.config.sync == "events":
            self._held_back.abandon()
        # Kept: to destroy them would copy the memory in which they lie.
        self._of_parent = self._writer, self._disk, self._watchdog, self._open_now, self._held_back
        prepared, self._of_child = self._of_child, None
        self._use(prepared or self._build(inherited=self._files))
        if was_on:
            self._open()

    def is_described_in_turn(self) -> bool:
        """Return whether this process has described itself under a name that children use in turn."""
        return self._files.is_described_in_turn()

    def counts(self) -> dict[str, int]:
        """Return how many records were taken, changed, waiting and lost, in this process."""
        writer, disk, files = self._writer, self._disk, self._files
        on_the_way = writer.recorded - disk.dropped_records - files.lost_records - files.written_records
        return {
            "recorded": writer.recorded,
            "waiting": writer.waiting + len(self._held_back) + max(0, on_the_way),
            "changed": writer.changed_records,
            "sampled_out": writer.sampled_out_records,
            "dropped": writer.dropped_records + disk.dropped_records + files.lost_records + self._lost(),
        }

    def _lost(self) -> int:
        """Return how many records were lost before they reached the buffer."""
        return spans.dropped_records() - self._lost_before

    def _open(self) -> None:
        self._writer.open()
        if self.config.sync == "events":
            self._held_back.on()
            context.on_scope_closed(self._held_back.releasing(self._writer.step_ended))

    def _task_seen(self, running: "asyncio.AbstractEventLoop", thread: int) -> None:
        try:
            event_loop.task_seen(running, thread)
            self._writer.be_awake()  # the encoder's thread checks the loop's heartbeat
        except BaseException as error:  # a third-party event loop that lacks a method of asyncio's
            log_swallowed("watching an event loop", error)

    def _use(self, parts: _Parts) -> None:
        self._lost_before = spans.dropped_records()
        self._files, self._disk, self._writer = parts.files, parts.disk, parts.writer
        self._watchdog, self._open_now, self._held_back = parts.watchdog, parts.open_now, parts.held_back
        self._encoder = parts.encoder

    def _build(self, inherited: Files | None = None) -> _Parts:
        clock, config = Clock(), self.config
        files = Files(self._folder, clock, self._run, self._describe, self._parents, inherited)
        encoder = LineEncoder(clock)
        selection = selection_for(config, encoder.scope_of)
        held_back = HeldBack(holds=config.durability != "line")
        if config.durability == "line":
            disk: Disk = CallersDisk(files)
            writer: Writer = LineWriter(disk, encoder, self._look, selection)
        else:
            disk = Disk(files, config.memory_limit_mb * 2**20)
            young_sec = 0.0 if inherited is None else _YOUNG_SEC
            writer = Writer(disk, encoder, self._look, selection, young_sec)
        if config.sync == "events":
            writer.wrap_buffer(held_back.wrap)
        if config.nvtx:
            writer.wrap_buffer(nvtx.Ranges)
        watchdog = Watchdog(encoder, config.hang_after_sec)
        open_now = OpenNow(encoder, config.open_now_sec)
        return _Parts(files, disk, encoder, writer, watchdog, open_now, held_back)

    def _look(self, disk: Disk) -> float:
        """Do the periodic checks; return for how many seconds they may be skipped."""
        self._held_back.let_old_go()
        if self._stopped:  # a report would open a file again that has just been closed
            return 0.0
        leave_sec = self._watchdog.look(disk)
        self._open_now.look(disk)
        if leave_sec:  # no event loop runs
            tasks.forget_gone()
        if self._files.is_news():
            disk.do(self._files.describe_process)
        return 0.0 if len(self._held_back) else leave_sec


def _let_go_of_earlier_steps() -> None:
    """Forget the steps that have ended; reset the counts of open steps, which have no records yet."""
    for scope in scopes.scopes():
        if scope.open <= 0:
            scopes.forget_scope(scope)
        scope.written = scope.dropped = scope.sampled_out = 0
