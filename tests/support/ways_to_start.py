"""Start work in every way, under known ids: `ways_to_start.py WAY ...`; see `recorded_ways.py`.

Each way starts a task in step 1 for request "first", one in step 2 for "second" and one with nothing bound,
from one pool if it has one, so that the pool's workers are made in step 1.
"""

import asyncio
import concurrent.futures
import contextlib
import importlib
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from sglang_instrument import bind, event

STARTS = {
    "first": {"step": 1, "request_id": "first"},
    "second": {"step": 2, "request_id": "second"},
    "unbound": {},
}
WAYS = {}
#: These start programs of their own, which bind the ids again.
RAY = ("ray, a task", "ray, an actor")
REBIND = ("subprocess", *RAY)


def work(label):
    event("did", label=label)
    return label


def ids_of(way):
    """Return in words under which ids the tasks of a way are recorded."""
    if way in REBIND:
        return "none: the task binds its own"
    if way == "os.fork":
        return "those bound at the fork"
    is_start = any(name in way for name in ("Process,", "threading.Thread", "threading.Timer"))
    return "those bound at `start()`" if is_start else "those bound at its submit"


def tasks_of(way):
    """Return how many tasks a way starts under the same ids."""
    return 8 if way.startswith("joblib") else 1


def wait_until_written(tasks):
    """Wait until the records of so many tasks are in the log; at most ten minutes."""
    folder = Path(os.environ["SGLANG_INSTRUMENT_LOG_DIR"]) / os.environ["EXPERIMENT_NAME"]
    ends = time.monotonic() + 600
    while time.monotonic() < ends:
        written = sum(path.read_bytes().count(b'"event":"did"') for path in folder.rglob("*.jsonl"))
        if written >= tasks:
            return
        time.sleep(0.02)


class Threaded(threading.Thread):
    """A thread that overrides `run`."""

    def __init__(self, label):
        super().__init__()
        self.label = label

    def run(self):
        work(self.label)


def way(name):
    def register(function):
        WAYS[name] = contextlib.contextmanager(function)
        return function

    return register


def joined(started):
    started.start()
    started.join()
    assert getattr(started, "exitcode", 0) == 0


@way("threading.Thread, a target")
def thread():
    yield lambda label: joined(threading.Thread(target=work, args=(label,)))


@way("threading.Thread, a subclass")
def thread_subclass():
    yield lambda label: joined(Threaded(label))


@way("threading.Timer")
def timer():
    yield lambda label: joined(threading.Timer(0.01, work, (label,)))


@way("ThreadPoolExecutor.submit")
def thread_executor():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield lambda label: pool.submit(work, label).result()


@way("ThreadPoolExecutor.map")
def thread_executor_map():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield lambda label: list(pool.map(work, [label]))


@way("multiprocessing.pool.ThreadPool")
def thread_pool():
    from multiprocessing.pool import ThreadPool

    with ThreadPool(1) as pool:
        yield lambda label: pool.map(work, [label])


@way("asyncio.to_thread")
def to_thread():
    yield lambda label: asyncio.run(asyncio.to_thread(work, label))


@way("loop.run_in_executor, threads")
def run_in_executor():
    async def run(label):
        await asyncio.get_running_loop().run_in_executor(None, work, label)

    yield lambda label: asyncio.run(run(label))


@way("loop.run_in_executor, processes")
def run_in_processes():
    with concurrent.futures.ProcessPoolExecutor(1) as pool:

        async def run(label):
            await asyncio.get_running_loop().run_in_executor(pool, work, label)

        yield lambda label: asyncio.run(run(label))


@way("os.fork")
def fork():
    def run(label):
        child = os.fork()
        if child == 0:
            work(label)
            import sglang_instrument

            sglang_instrument.flush()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

    yield run


@way("subprocess")
def program():
    def run(label):
        code = f"from sglang_instrument import event; event('did', label={label!r})"
        subprocess.run([sys.executable, "-c", code], check=True)

    yield run


def processes_of(package, method):
    @way(f"{package}.Process, {method}")
    def process():
        context = importlib.import_module(package).get_context(method)
        yield lambda label: joined(context.Process(target=work, args=(label,)))

    @way(f"{package}.Pool, {method}")
    def pool():
        context = importlib.import_module(package).get_context(method)
        with contextlib.closing(context.Pool(1)) as pool:
            yield lambda label: pool.apply(work, (label,))
        pool.join()

    @way(f"{package}.Pool.imap, {method}")
    def imap():
        context = importlib.import_module(package).get_context(method)
        with contextlib.closing(context.Pool(1)) as pool:
            yield lambda label: list(pool.imap_unordered(work, [label]))
        pool.join()


for package in ("multiprocessing", "multiprocess", "billiard"):
    for method in ("fork", "spawn", "forkserver"):
        processes_of(package, method)


def executor_of(method):
    @way(f"ProcessPoolExecutor, {method}")
    def executor():
        with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
            yield lambda label: pool.submit(work, label).result()


for method in ("fork", "spawn", "forkserver"):
    executor_of(method)


@way("loky")
def loky():
    from loky import get_reusable_executor

    with get_reusable_executor(max_workers=1) as pool:
        yield lambda label: pool.submit(work, label).result()


def joblib_of(backend):
    @way(f"joblib, {backend}")
    def joblib():
        from joblib import Parallel, delayed

        # Many batches: the later ones are submitted when earlier ones are done, from a thread of the pool.
        with Parallel(n_jobs=2, backend=backend, batch_size=1, pre_dispatch=2) as parallel:
            yield lambda label: parallel(delayed(work)(label) for _ in range(8))
            wait_until_written(
                len(STARTS) * tasks_of(f"joblib, {backend}")
            )  # a pool of multiprocessing is ended by a signal


for backend in ("loky", "threading", "multiprocessing"):
    joblib_of(backend)


def dask_of(scheduler):
    @way(f"dask, {scheduler}")
    def dask():
        import dask

        yield lambda label: dask.compute(dask.delayed(work)(label), scheduler=scheduler, num_workers=1)


for scheduler in ("threads", "processes"):
    dask_of(scheduler)


@way("ray, a task")
def ray_task():
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield lambda label: ray.get(ray.remote(work).remote(label))
    wait_until_written(len(STARTS))  # Ray kills its workers
    ray.shutdown()


@way("ray, an actor")
def ray_actor():
    import ray

    class Actor:
        def run(self, label):
            return work(label)

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    actor = ray.remote(Actor).remote()
    yield lambda label: ray.get(actor.run.remote(label))
    wait_until_written(len(STARTS))
    ray.shutdown()


def run_way(name):
    """Start the work in one way, under each of the ids."""
    with contextlib.ExitStack() as stack:
        start = None
        for label, ids in STARTS.items():
            with bind(**ids):
                start = start or stack.enter_context(WAYS[name]())
                start(label)
    # Some packages end their processes with a signal.
    wait_until_written(len(STARTS) * tasks_of(name))


def main(names):
    import sglang_instrument

    sglang_instrument.install()
    for name in names:
        run_way(name)


if __name__ == "__main__":
    main(sys.argv[1:])
