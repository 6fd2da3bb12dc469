"""A blocked event loop is logged with the line that blocks it; a stopped loop is not."""

import asyncio
import ctypes
import threading
import time
from datetime import datetime

import pytest
from awaited import wait_for

import sglang_instrument
from sglang_instrument import bind, event, span
from sglang_instrument.recording.watch import event_loop as heartbeats
from sglang_instrument.testing import records

STOPPED_SEC = 2 * heartbeats.BLOCK_SEC


class Outside:
    """Stands in for the writer's thread: checks the hearts every 20 ms from another thread."""

    looks = 0

    def __enter__(self):
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self):
        while not self._stop.wait(0.02):
            heartbeats.check_heartbeats()
            self.looks += 1

    def __exit__(self, *exc):
        self._stop.set()
        self._thread.join()


def hold_the_loop(seconds):
    """Block the loop for at least this long, and until the block was noticed, later on a busy machine."""
    time.sleep(seconds)
    deadline = time.monotonic() + 600
    while seconds and not was_sampled_here():  # in this function, which the samples name
        assert time.monotonic() < deadline, "the block was not noticed"
        time.sleep(0.01)


def was_sampled_here():
    hearts = list(heartbeats._heartbeats.values())
    stacks = [stack for heart in hearts for stack in list(heart._samples)]
    return any(is_planted(stack) for stack in stacks)


def is_planted(stack):
    return bool(stack) and stack[-1].endswith("hold_the_loop")


def planted_block(seen):
    """Return the longest block in `hold_the_loop`: a busy machine may add others, short or long."""
    blocks = seen.of("event_loop_block")
    planted = [block for block in blocks if is_planted(block["extra"]["stack"])]
    assert planted, blocks
    return max(planted, key=lambda block: block["duration_sec"])


async def request(seconds):
    with bind(request_id="r7", turn=1), span("tool_execution"):
        await asyncio.sleep(0.06)
        hold_the_loop(seconds)
        await asyncio.sleep(0.06)


@pytest.fixture(params=["asyncio", "uvloop"])
def new_loop(request):
    made = []

    def make():
        module = asyncio if request.param == "asyncio" else pytest.importorskip("uvloop")
        made.append(module.new_event_loop())
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_blocked_loop_is_logged_with_the_line_and_the_span_that_block_it(new_loop):
    with records(watch_loops=True) as seen, Outside(), bind(step=3):
        new_loop().run_until_complete(request(0.4))
    block = planted_block(seen)
    assert block["duration_sec"] > 0.3
    assert (block["extra"]["in_span"], block["extra"]["request_id"]) == ("tool_execution", "r7")
    assert block["step"] == 3


def test_a_thread_that_holds_the_interpreters_lock_is_logged_though_no_code_of_the_loop_was_seen(new_loop):
    def hold_the_lock():
        time.sleep(0.03)
        # Called by PyDLL, a function keeps the lock: neither the loop nor the thread that looks at it runs.
        ctypes.PyDLL(None).usleep(1_500_000)

    async def request_beside_it():
        with span("tool_execution"):
            await asyncio.sleep(0.06)
            holder = threading.Thread(target=hold_the_lock)
            holder.start()
            while holder.is_alive():
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.06)

    with records(watch_loops=True) as seen, Outside():
        new_loop().run_until_complete(request_beside_it())
    block = max(seen.of("event_loop_block"), key=lambda block: block["duration_sec"])
    assert block["duration_sec"] > 1.3
    assert block["extra"]["cpu_sec"] < block["duration_sec"]  # the lock was held asleep


def test_a_call_of_the_loop_that_holds_the_interpreters_lock_is_named(new_loop):
    def hold_the_loop_and_the_lock():
        begun = time.monotonic()
        while time.monotonic() < begun + 1.5:  # a call that lets no thread run for a second or two
            pow(7, 5_000_000)
        while not any(heart._samples or heart._late_samples for heart in heartbeats._heartbeats.values()):
            time.sleep(0.01)

    async def request_in_it():
        with span("tool_execution"):
            await asyncio.sleep(0.06)
            hold_the_loop_and_the_lock()
            await asyncio.sleep(0.06)

    with records(watch_loops=True) as seen, Outside():
        new_loop().run_until_complete(request_in_it())
    block = max(seen.of("event_loop_block"), key=lambda block: block["duration_sec"])
    assert block["duration_sec"] > 1.3
    assert block["extra"]["stack"][-1].endswith("hold_the_loop_and_the_lock")


def test_a_loop_that_was_stopped_between_two_runs_is_not_blocked(new_loop):
    running = new_loop()
    with records(watch_loops=True) as seen, Outside() as outside:
        running.run_until_complete(request(0))
        stopped, looks = time.time(), outside.looks
        wait_for(lambda: outside.looks > looks + 1, "nothing looks at the loop while it is stopped")
        time.sleep(STOPPED_SEC)
        started = time.time()
        running.run_until_complete(request(0))
    # A busy machine may make the loop late while it runs: such times lie before or after the stop.
    for late in [*seen.of("event_loop_block"), *seen.of("event_loop_lag")]:
        end = datetime.fromisoformat(late["timestamp"]).timestamp()
        in_the_stop_sec = min(end, started) - max(end - late["extra"]["lag_sec"], stopped)
        assert in_the_stop_sec < STOPPED_SEC / 2, late


def test_a_heart_stops_when_its_loop_is_closed_or_nothing_is_recorded(new_loop):
    running = new_loop()
    with records(watch_loops=True):
        running.run_until_complete(request(0))
        assert len(heartbeats._heartbeats) == 1
        running.close()
        heartbeats.check_heartbeats()
        assert not heartbeats._heartbeats


def test_a_beat_carries_no_request(new_loop):
    with records(watch_loops=True) as seen, Outside(), bind(step=1):

        async def run():
            await asyncio.create_task(request(0.15))
            event("after")
            await asyncio.sleep(0.05)

        new_loop().run_until_complete(run())
    block = planted_block(seen)
    assert "turn" not in {key for key in block["extra"] if key not in ("request_id", "turn")}


def test_a_loop_has_its_heart_again_when_recording_is_off_and_on_though_its_tasks_are_known(
    new_loop, install
):
    running = new_loop()

    async def goes_on():
        with span("tool_execution"):
            await asyncio.sleep(0)
        [before] = heartbeats._heartbeats.values()
        sglang_instrument.uninstall()
        assert not heartbeats._heartbeats
        install()
        for _ in range(10):  # the old heart has a pending beat, which must not stop the new heart
            await asyncio.sleep(heartbeats.BEAT_SEC)
            with span("tool_execution"):
                pass
        [after] = heartbeats._heartbeats.values()
        assert after is not before

    install()
    running.run_until_complete(goes_on())


def test_a_forked_child_leaves_its_parents_loops_alone(run_script):
    run_script("""
        import asyncio, os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on: threads and fork
        import sglang_instrument as si
        from sglang_instrument.recording.watch import event_loop

        async def main():
            with si.span("tool_execution"):
                await asyncio.sleep(0)
            assert list(event_loop._loops)
            child = os.fork()
            if child == 0:
                os._exit(1 if list(event_loop._loops) or event_loop._heartbeats else 0)
            assert os.waitpid(child, 0)[1] == 0

        si.install()
        asyncio.run(main())
        """)


def test_no_heart_comes_back_to_a_loop_that_is_closed_or_after_recording_is_off(new_loop, install):
    closed, open_still = new_loop(), new_loop()
    with records(watch_loops=True):
        for loop in (closed, open_still):
            loop.run_until_complete(request(0))
    closed.close()
    install()
    sglang_instrument.uninstall()  # before the loop ran it
    open_still.run_until_complete(asyncio.sleep(0.05))
    assert not heartbeats._heartbeats
