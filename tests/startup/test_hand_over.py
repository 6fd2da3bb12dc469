"""Ids travel to threads, processes and tasks of pools; the program's calls and objects stay as they are."""

import asyncio
import concurrent.futures
import concurrent.futures.process
import contextvars
import multiprocessing.pool
import pickle
import subprocess
import sys
import threading

import pytest
from logged import read_records, recorded_events

import sglang_instrument
from sglang_instrument import bind, event
from sglang_instrument.recording.measure.context import CURRENT
from sglang_instrument.startup.carried_task import CarriedTask

OTHER = contextvars.ContextVar("other", default="not set")


def bound():
    """Return the ids that are bound here."""
    context = CURRENT.get()
    return {
        name: value
        for name in ("step", "worker", "request_id", "turn", "role", "validate")
        if (value := getattr(context, name))
    }


def raised(error):
    raise error


IDS = {"step": 3, "worker": 2, "request_id": "r", "turn": 4, "role": "reward", "validate": True}


@pytest.fixture
def threads(install):
    install()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield pool


def test_a_task_has_all_ids_of_its_submit_and_its_worker_has_none_afterwards(threads):
    with bind(**IDS):
        assert threads.submit(bound).result() == IDS
        with bind(request_id="inner"):
            submitted = threads.submit(bound)
    assert submitted.result() == {**IDS, "request_id": "inner"}
    assert threads.submit(bound).result() == {}


def test_a_task_has_no_ids_of_a_generator_that_another_thread_closed_before_its_submit(threads):
    def items():
        with bind(request_id="generator"):
            yield 1

    generator = items()
    next(generator)
    assert threads.submit(bound).result() == {"request_id": "generator"}
    closing = threading.Thread(target=generator.close)
    closing.start()
    closing.join()
    assert threads.submit(bound).result() == {}


def test_no_other_context_variable_travels(threads):
    OTHER.set("set")
    with bind(step=1):
        assert threads.submit(OTHER.get).result() == "not set"
        seen = []
        thread = threading.Thread(target=lambda: seen.append(OTHER.get()))
        thread.start()
        thread.join()
    assert seen == ["not set"]


def test_a_pools_threads_begin_unbound_and_keep_what_their_initializer_binds(install):
    install()
    seen = []

    def begin():
        seen.append(bound())
        bind(worker=7).__enter__()

    with bind(step=3), concurrent.futures.ThreadPoolExecutor(1, initializer=begin) as pool:
        assert pool.submit(bound).result() == {"step": 3, "worker": 7}
    assert seen == [{}]


def test_callbacks_run_under_the_ids_of_their_registration(threads):
    seen = []
    release = threading.Event()
    with bind(step=3):
        future = threads.submit(release.wait)
        future.add_done_callback(lambda done: seen.append((bound(), done is future)))
    release.set()
    threads.shutdown()
    assert seen == [({"step": 3}, True)]


def test_a_task_that_raises_gives_its_own_exception_and_leaves_nothing_bound(threads):
    error = KeyError("mine")
    with bind(step=3):
        future = threads.submit(raised, error)
    assert future.exception() is error
    assert threads.submit(bound).result() == {}


def test_arguments_of_the_task_itself_are_not_touched(threads):
    with bind(step=3):
        assert threads.submit(lambda **given: given, fn=len, func=len).result() == {"fn": len, "func": len}


def test_while_nothing_is_bound_a_task_is_passed_on_as_it_is(threads):
    release = threading.Event()
    threads.submit(release.wait)
    threads.submit(bound)
    waiting = threads._work_queue.get_nowait()
    release.set()
    assert waiting.fn is bound


def test_errors_of_a_submit_are_those_without_us(install):
    def errors():
        pool = concurrent.futures.ThreadPoolExecutor(1)
        pool.shutdown()
        with concurrent.futures.ProcessPoolExecutor(1) as processes:
            unpicklable = processes.submit(lambda: None).exception()
        errors_seen = []
        for call in (lambda: pool.submit(bound), lambda: pool.submit(), lambda: pool.submit(fn=bound)):
            with pytest.raises(Exception) as caught:  # noqa: PT011 - each its own
                call()
            errors_seen.append((type(caught.value), str(caught.value)))
        return [*errors_seen, (type(unpicklable), str(unpicklable).replace("<locals>", ""))]

    before = errors()
    install()
    with bind(step=1):
        assert errors() == before


def test_a_future_of_asyncio_and_a_thread_of_it_see_the_ids_of_their_own_task(install):
    install()

    async def request(name):
        with bind(request_id=name):
            await asyncio.sleep(0)
            loop = asyncio.get_running_loop()
            in_executor = loop.run_in_executor(None, bound)
            return [await in_executor, await asyncio.to_thread(bound)]

    async def main():
        return await asyncio.gather(request("a"), request("b"))

    assert asyncio.run(main()) == [[{"request_id": "a"}] * 2, [{"request_id": "b"}] * 2]


def test_everything_is_restored_in_any_order_of_import_and_install(run_script):
    run_script(
        """
        import importlib, sys
        from sglang_instrument import install, uninstall
        from sglang_instrument.startup.hand_over import _WAYS

        def contents():
            found = {}
            for name, (owner, _) in _WAYS.items():
                if name in sys.modules:
                    found[name] = dict(vars(getattr(sys.modules[name], owner)))
            return found

        threading = contents()["threading"]
        install()
        assert dict(vars(sys.modules["threading"].Thread)) != threading
        uninstall()
        assert contents()["threading"] == threading
        install()
        import concurrent.futures.process, concurrent.futures.thread, multiprocessing.pool
        uninstall()
        pristine = contents()
        assert len(pristine) >= 6
        for ours in pristine.values():
            assert not [value for value in ours.values() if "sglang_instrument" in repr(value)], ours
        for _ in range(2):
            install()
            changed = contents()
            assert all(changed[name] != pristine[name] for name in pristine)
            uninstall()
            assert contents() == pristine
        """
    )


def test_a_process_without_this_package_gets_the_bare_function():
    sent = pickle.dumps(CarriedTask(divmod, {"step": 3}))
    program = "import pickle, sys; f = pickle.load(sys.stdin.buffer); print(f is divmod, f(7, 2))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], input=sent, capture_output=True)
    assert done.stdout.decode().strip() == "True (3, 1)", done.stderr


def test_a_task_of_an_uninstalled_process_runs_unbound(install):
    install()
    with bind(step=3):
        task = CarriedTask(bound, CURRENT.get())
    sglang_instrument.uninstall()
    assert pickle.loads(pickle.dumps(task))() == {}


WORKERS = """
import os, sys
from multiprocessing import get_context
import sglang_instrument

def light(number):
    assert not sglang_instrument.installed()
    assert "sglang_instrument.startup.session" not in sys.modules
    return number

def records(number):
    from sglang_instrument import event
    event("did", number=number)
    return number

if __name__ == "__main__":
    sglang_instrument.install()
    with sglang_instrument.bind(step=1, request_id="first"):
        pool = get_context("spawn").Pool(1)
        assert pool.map(light, [1]) == [1]
    with sglang_instrument.bind(step=2, request_id="second"):
        assert pool.map(records, [2, 3]) == [2, 3]
    assert pool.map(records, [4]) == [4]
    pool.close()
    pool.join()
"""


def run_main(run_script, tmp_path, source):
    (tmp_path / "main.py").write_text(source)
    return run_script("import os, sys; os.execv(sys.executable, [sys.executable, 'main.py'])")


def ids_by_number(script):
    did = [
        record
        for file in script.records.values()
        for record in recorded_events(file)
        if record["event"] == "did"
    ]
    return {record["extra"]["number"]: (record["step"], record["extra"].get("request_id")) for record in did}


def test_a_worker_that_records_nothing_installs_nothing_and_one_that_does_has_the_tasks_ids(
    run_script, tmp_path
):
    script = run_main(run_script, tmp_path, WORKERS)
    assert ids_by_number(script) == {2: (2, "second"), 3: (2, "second"), 4: (0, None)}


LATER = """
import os
from multiprocessing import get_context
from concurrent.futures import ProcessPoolExecutor
import sglang_instrument
from sglang_instrument import bind, event

def work(number):
    event("did", number=number)
    return os.getpid()

def begin():
    event("did", number=-os.getpid())

if __name__ == "__main__":
    sglang_instrument.install()
    with bind(step=1, request_id="first"):
        pool = get_context("fork").Pool(1, maxtasksperchild=1, initializer=begin)
        workers = {pool.apply(work, (0,))}
    for number in range(1, 4):
        with bind(step=number, request_id=f"r{number}"):
            workers.add(pool.apply(work, (number,)))
    assert len(workers) == 4
    pool.close()
    pool.join()
"""


def test_workers_that_a_pool_makes_later_begin_unbound_too(run_script, tmp_path):
    ids = ids_by_number(run_main(run_script, tmp_path, LATER))
    assert {number: ids[number] for number in range(4)} == {
        0: (1, "first"),
        **{number: (number, f"r{number}") for number in range(1, 4)},
    }
    assert {ids[number] for number in ids if number < 0} == {(0, None)}


CLOSED = """
import multiprocessing, pathlib, sys, time
import sglang_instrument
from sglang_instrument import bind, event

def work(number):
    event("did", number=number)

if __name__ == "__main__":
    sglang_instrument.install()
    context = multiprocessing.get_context(METHOD)
    with bind(step=1):
        child = context.Process(target=work, args=(1,))
        child.start()
        child.join()
    with context.Pool(1) as pool:
        for number in range(2, 4):
            with bind(step=number):
                pool.map(work, [number] * 100)
        folder = pathlib.Path(sglang_instrument.status()["folder"])
        def is_closed(number):
            text = "".join(path.read_text() for path in folder.glob(f"step_{number}/*.jsonl"))
            return text.count('"did"') == 100 and "step_closed" in text.splitlines()[-1]
        while not is_closed(2) or not is_closed(3):
            time.sleep(0.02)
        # The block's end kills the workers.
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_step_of_a_childs_tasks_is_closed_also_if_the_pool_is_killed(run_script, tmp_path, method):
    script = run_main(run_script, tmp_path, CLOSED.replace("METHOD", repr(method)))
    files = [records for records in script.records.values() if recorded_events(records)]
    assert len(files) == 3
    for records in files:
        closed = [record["extra"]["written"] for record in records if record["event"] == "step_closed"]
        assert closed[-1] == len(recorded_events(records))
        assert len(closed) < 20


def test_a_process_object_is_what_it_was_after_its_start(install):
    install()
    process = multiprocessing.get_context("spawn").Process(target=bound)
    before = set(vars(process))
    with bind(step=1):
        process.start()
    process.join()
    assert set(vars(process)) - before == {"_sentinel"}


def test_threads_log_the_step_in_which_they_were_started(install):
    folder = install()

    class Worker(threading.Thread):
        def run(self):
            event("did", name=self.name)

    for number in (1, 2):
        with bind(step=number):
            worker = Worker(name=f"w{number}")
            worker.start()
            worker.join()
    sglang_instrument.uninstall()
    names = {
        path: [record["extra"] for record in recorded_events(records)]
        for path, records in read_records(folder).items()
    }
    assert names == {f"step_{number}/worker_0.jsonl": [{"name": f"w{number}"}] for number in (1, 2)}
