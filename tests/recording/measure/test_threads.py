"""With many concurrent threads and event loops, nothing is lost, duplicated or started again."""

import asyncio
import itertools
import sys
import threading
import types

import pytest
from logged import read_records, recorded_events

import sglang_instrument
from sglang_instrument import bind, span, step

SWITCHED = """
    import asyncio, itertools, threading
    import sglang_instrument as si

    stop = threading.Event()

    def record(number):
        for index in itertools.count():
            if stop.is_set():
                return
            with si.bind(step=1, worker=number), si.span("total_step_duration", index=index), si.span("work"):
                stop.wait(0.0001)

    threads = [threading.Thread(target=record, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(15):
        si.install()
        si.flush()
        si.uninstall()
    stop.set()
    for thread in threads:
        thread.join()
    assert not [notice for notice in si.status()["notices"] if "failed" in notice["notice"]]
"""


def test_threads_record_while_another_installs_and_uninstalls(run_script):
    script = run_script(SWITCHED)
    assert "Exception in thread" not in script.stderr
    for records in script.records.values():
        events = [record for record in recorded_events(records) if record["event"] == "total_step_duration"]
        indices = [record["extra"]["index"] for record in events]
        assert len(indices) == len(set(indices))


@pytest.mark.parametrize("durability", ["buffered", "line"])
def test_a_span_that_ends_in_another_thread_during_uninstall_starts_nothing_anew(run_script, durability):
    script = run_script(
        """
        import threading
        import sglang_instrument as si
        from sglang_instrument.recording.measure import spans

        si.install()
        seen_before = spans.current_buffer()  # by a thread that is interrupted on its way to append
        si.uninstall()
        seen_before.append(spans.Span("late", end=1))
        assert threading.active_count() == 1
        """,
        SGLANG_INSTRUMENT_DURABILITY=durability,
    )
    assert not script.folder.exists()


@pytest.mark.parametrize("durability", ["buffered", "line"])
def test_a_signal_handler_that_records_while_the_threads_are_started_waits_for_nobody(run_script, durability):
    script = run_script(
        """
        import signal, threading
        import sglang_instrument as si

        def handle(*_):
            with si.span("handler"):
                pass

        def start_interrupted(thread):
            signal.raise_signal(signal.SIGUSR1)
            start(thread)

        start, threading.Thread.start = threading.Thread.start, start_interrupted
        signal.signal(signal.SIGUSR1, handle)
        si.install()
        with si.step(1):
            for event in ("first", "second"):
                with si.span(event):
                    pass
        assert si.flush(600)
        """,
        SGLANG_INSTRUMENT_DURABILITY=durability,
    )
    events = [record["event"] for record in recorded_events(script.records["step_1/worker_0.jsonl"])]
    assert sorted(set(events)) == ["first", "handler", "second"]
    assert (events.count("first"), events.count("second")) == (1, 1)


INTERRUPTED = """
    import signal, threading
    from pathlib import Path
    import sglang_instrument as si
    from sglang_instrument.recording.measure import context, scopes
    from sglang_instrument.recording.keep.presence import Presence

    def start_interrupted(thread):
        signal.raise_signal(signal.SIGUSR1)
        start(thread)

    start, threading.Thread.start = threading.Thread.start, start_interrupted

    def ours(name):
        return [thread for thread in threading.enumerate() if thread.name == f"sglang{name}"]
"""


def test_a_signal_handler_that_begins_a_step_while_the_profilers_thread_is_started_waits_for_nobody(
    run_script,
):
    run_script(
        INTERRUPTED
        + """
    def handle(*_):
        with si.step(2):
            pass

    signal.signal(signal.SIGUSR1, handle)
    si.install(profile_steps="1-2")
    with si.step(1):
        assert len(ours("-instrument-profile")) == 1
    si.uninstall()
    assert not ours("-instrument-profile")
    """
    )


def test_a_signal_handler_that_has_something_patched_while_its_telling_starts_waits_for_nobody(run_script):
    run_script(
        INTERRUPTED
        + """
    presence = Presence(Path("run"), dict)
    signal.signal(signal.SIGUSR1, lambda *_: presence.tell())
    presence.tell()
    assert len(ours("_instrument-reached")) == 1
    presence.end(600)
    """
    )


def test_a_signal_handler_that_binds_the_step_which_is_being_bound_waits_for_nobody(run_script):
    run_script(
        INTERRUPTED
        + """
    class Interrupted(scopes.Scope):  # with it a signal comes at each count, as it may in Python 3.10
        def __setattr__(self, name, value):
            signal.raise_signal(signal.SIGUSR1)
            super().__setattr__(name, value)

    def handle(*_):
        global handled
        handled += 1
        with si.step(1):
            pass

    handled = 0
    si.install()
    plain = scopes.scope_for(None, None, 1, False)
    interrupted = Interrupted(plain.role, plain.worker, 1, False)
    signal.signal(signal.SIGUSR1, handle)
    block = context.Context(scope=interrupted)
    context.open_block(block, interrupted)
    context.count_dropped(interrupted, 1)
    context.end_block(block)
    assert context.take_ended(interrupted)
    assert (handled, plain.open, interrupted.dropped) == (6, 0, 1)
    """
    )


def test_tasks_record_while_others_install_and_uninstall(install, log_dir):
    over = asyncio.Event()
    path = log_dir / "run/step_1/worker_0.jsonl"

    def written():
        return path.stat().st_size if path.exists() else 0

    async def request(number):
        with bind(request_id=f"r{number}"):
            for turn in itertools.count():
                if over.is_set():
                    return
                async with span("turn_engine_call", turn=turn):
                    await asyncio.sleep(0.001)

    async def switch():
        for _ in range(3):
            before = written()
            install()
            while written() == before:
                await asyncio.sleep(0.005)
            sglang_instrument.uninstall()
            await asyncio.sleep(0.005)
        over.set()

    async def rollout():
        with step(1):
            await asyncio.gather(*(request(number) for number in range(20)), switch())

    asyncio.run(rollout())
    seen = [
        (record["extra"]["request_id"], record["extra"]["turn"])
        for record in read_records(log_dir / "run")["step_1/worker_0.jsonl"]
        if record["event"] == "turn_engine_call"
    ]
    assert len(seen) == len(set(seen)) > 0


def test_four_threads_lose_and_double_nothing(install):
    folder = install()

    def record(number):
        with bind(step=1, worker=number):
            for index in range(15_000):
                with span("work", index=index):
                    pass

    threads = [threading.Thread(target=record, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sglang_instrument.flush(600)
    assert sglang_instrument.status()["records"]["dropped"] == 0
    sglang_instrument.uninstall()
    written = {
        path: [record["extra"]["index"] for record in recorded_events(records)]
        for path, records in read_records(folder).items()
    }
    assert written == {f"step_1/worker_{number}.jsonl": list(range(15_000)) for number in range(4)}


def test_event_loops_in_several_threads_keep_their_tasks_apart(install):
    folder = install()

    async def request(number):
        with bind(request_id=number), span("async_rollout_request_complete"):
            await asyncio.sleep(0.01)
            with span("tool_execution"):
                await asyncio.sleep(0.01)

    async def rollout(worker):
        with bind(step=1, worker=worker):
            await asyncio.gather(*(request(number) for number in range(5)))

    threads = [
        threading.Thread(target=lambda worker=worker: asyncio.run(rollout(worker))) for worker in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sglang_instrument.uninstall()
    tasks = set()
    for records in read_records(folder).values():
        spans_of_task = {}
        for record in recorded_events(records):
            if record["event"] in ("async_rollout_request_complete", "tool_execution"):
                spans_of_task.setdefault(record["task"], []).append(record)
        assert len(spans_of_task) == 5
        for inner, outer in spans_of_task.values():
            assert inner["extra"]["request_id"] == outer["extra"]["request_id"]
        assert tasks.isdisjoint(spans_of_task)
        tasks |= set(spans_of_task)


@pytest.mark.parametrize("half", ["asyncio", "torch"])
def test_a_span_while_another_thread_imports_what_it_looks_at_never_raises(install, monkeypatch, half):
    install()
    module = types.ModuleType(half)  # the state of sys.modules at the beginning of an import
    module.cuda = types.ModuleType("torch.cuda")
    monkeypatch.setitem(sys.modules, half, module)
    with step(1), span("total_step_duration"):
        pass
