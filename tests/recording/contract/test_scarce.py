"""If descriptors, memory or threads run out, a process ends as without us, and loses no record."""

import json

import pytest
from logged import read_records, recorded_events

TAKE_ALL_DESCRIPTORS = """
    import os, resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    try:
        while True:
            os.open("/", os.O_RDONLY)
    except OSError:
        pass
"""
TAKE_ALL_MEMORY = """
    import resource
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
"""


@pytest.mark.parametrize("durability", ["buffered", "line"])
@pytest.mark.parametrize("take", [TAKE_ALL_DESCRIPTORS, TAKE_ALL_MEMORY], ids=["descriptors", "memory"])
@pytest.mark.parametrize("end", ["pass", "si.uninstall()", "raise SystemExit(3)"])
def test_a_process_short_of_a_resource_ends_with_its_own_code(run_script, take, end, durability):
    script = run_script(
        f"""
    import sglang_instrument as si
    si.install()
    with si.step(1), si.span("total_step_duration"):
        for index in range(100):
            si.event("did", index=index)
    {take}
    {end}
    """,
        code=3 if "3" in end else 0,
        SGLANG_INSTRUMENT_DURABILITY=durability,
    )
    assert "libgcc" not in script.stderr


# A stack size that fits into no address space, and a limit that leaves no room for a stack.
NO_THREADS = {
    "stacks": ("threading.stack_size(2**47)", "threading.stack_size(0)"),
    "memory": (
        "size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "    threading.stack_size(64 * 2**20)\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (size + 32 * 2**20, -1))",
        "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    ),
}
RECORDS = """
    import json, os, resource, threading, time
    import sglang_instrument as si

    def steps(*numbers):
        for number in numbers:
            with si.step(number), si.span("total_step_duration"):
                for index in range(999):
                    si.event("did", index=index)

    si.install()
    {forbid}
    try:
        threading.Thread(target=int).start()
    except RuntimeError:
        pass
    else:
        raise SystemExit("threads can be started")
    steps(1, 2, 3, 4)
    print(json.dumps(si.status()["records"]))
    {then}
"""


@pytest.fixture
def record_without_threads(run_script):
    """Record four steps of 1,000 records while no thread can be started, and then run `then`."""

    def run(why, then, **environment):
        forbid, allow = NO_THREADS[why]
        script = run_script(RECORDS.format(forbid=forbid, then=then.format(allow=allow)), **environment)
        assert script.stderr.count("no thread can be started") == 1
        return script

    return run


def steps_below(folder):
    """Return the number of records of each file; None for an incomplete step."""
    wholes = {}
    for path, records in read_records(folder).items():
        events = [record["event"] for record in records]
        wholes[path] = len(recorded_events(records)) if "step_closed" in events else None
        indices = [record["extra"]["index"] for record in records if record["event"] == "did"]
        assert indices == list(range(len(indices)))
    return wholes


def whole(*steps):
    return {f"step_{step}/worker_0.jsonl": 1000 for step in steps}


@pytest.mark.parametrize("why", NO_THREADS)
@pytest.mark.parametrize("end", ["pass", "assert si.flush(600)", "si.uninstall()"])
def test_records_wait_for_a_thread_until_somebody_asks_for_them_or_the_process_ends(
    record_without_threads, why, end
):
    script = record_without_threads(why, end)
    counts = json.loads(script.stdout)
    assert (counts["recorded"], counts["waiting"], counts["dropped"]) == (0, 4000, 0)
    assert steps_below(script.folder) == whole(1, 2, 3, 4)


@pytest.mark.parametrize("why", NO_THREADS)
def test_with_durability_line_every_record_is_written_at_once_without_threads(record_without_threads, why):
    script = record_without_threads(why, "pass", SGLANG_INSTRUMENT_DURABILITY="line")
    counts = json.loads(script.stdout)
    assert (counts["recorded"], counts["waiting"], counts["dropped"]) == (4000, 0, 0)
    assert steps_below(script.folder) == whole(1, 2, 3, 4)


@pytest.mark.parametrize("why", NO_THREADS)
def test_when_threads_can_be_started_again_the_next_span_starts_them(record_without_threads, why):
    script = record_without_threads(
        why,
        """
    {allow}
    time.sleep(1.1)
    steps(5)
    path = si.status()["folder"] + "/step_5/worker_0.jsonl"
    while not (os.path.exists(path) and "step_closed" in open(path).read()):
        time.sleep(0.01)  # without flush()
    os._exit(0)
    """,
    )
    assert steps_below(script.folder) == whole(1, 2, 3, 4, 5)


def test_not_every_span_tries_to_start_a_thread(record_without_threads):
    script = record_without_threads(
        "stacks",
        """
    started = []
    start, threading.Thread.start = threading.Thread.start, lambda thread: (started.append(1), start(thread))
    begin = time.monotonic()
    steps(5, 6, 7, 8)
    print(len(started) - (time.monotonic() - begin))
    """,
    )
    assert float(script.stdout.splitlines()[-1]) <= 1


def test_what_is_recorded_beyond_the_bound_while_no_thread_can_be_started_is_dropped_and_counted(
    record_without_threads,
):
    script = record_without_threads(
        "stacks",
        """
    from sglang_instrument.recording.keep.writer import MOST_SPANS
    with si.step(5):
        for index in range(MOST_SPANS):
            si.event("did", index=index)
    print(json.dumps(si.status()["records"]))
    si.flush(600)
    """,
    )
    counts = json.loads(script.stdout.splitlines()[-1])
    assert (counts["waiting"], counts["dropped"]) == (200_000, 4000)
    lines = (script.folder / "step_5/worker_0.jsonl").read_bytes().splitlines()
    [closed] = [json.loads(line) for line in lines if b'"event":"step_closed"' in line]
    assert sum(b'"event":"did"' in line for line in lines) == 196_000
    assert (closed["extra"]["written"], closed["extra"]["dropped"]) == (196_000, 4000)
    assert "new records are dropped and counted" in script.stderr


def test_threads_that_record_while_no_other_can_be_started_lose_and_double_nothing(run_script):
    script = run_script("""
        import threading
        import sglang_instrument as si

        def record(number):
            go.wait()
            with si.bind(step=1, worker=number):
                for index in range(8_000):
                    si.event("did", index=index)
                    if index % 2_000 == number:
                        assert si.flush(600)

        go = threading.Event()
        threads = [threading.Thread(target=record, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        si.install()
        threading.stack_size(2**47)
        go.set()
        for thread in threads:
            thread.join()
        assert threading.active_count() == 1
    """)
    written = {
        path: [record["extra"]["index"] for record in recorded_events(records)]
        for path, records in script.records.items()
    }
    assert written == {f"step_1/worker_{number}.jsonl": list(range(8_000)) for number in range(4)}


def test_a_forked_child_without_threads_writes_what_it_recorded(record_without_threads):
    script = record_without_threads(
        "stacks",
        """
    child = os.fork()
    steps(5)
    if child:
        assert os.waitpid(child, 0)[1] == 0
    """,
    )
    mine, [child] = whole(1, 2, 3, 4, 5), set(steps_below(script.folder)) - set(whole(1, 2, 3, 4, 5))
    assert steps_below(script.folder) == mine | {child: 1000}
    assert child.startswith("step_5/worker_0.")


def test_a_limit_on_processes_is_one_on_threads(run_script):
    script = run_script("""
        import collections, logging, os, resource, tempfile
        from pathlib import Path
        import sglang_instrument as si

        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o777)
            si.install(log_dir=folder)
            if os.getuid() == 0:  # whom no limit binds
                os.seteuid(65534)
                os.setresuid(65534, 65534, 0)
            resource.setrlimit(resource.RLIMIT_NPROC, (0, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
            with si.step(1):
                for index in range(1000):
                    si.event("did", index=index)
            print(si.status()["records"]["waiting"])
            si.uninstall()
            print(sum(path.read_text().count('"did"') for path in Path(folder).rglob("step_1/*.jsonl")))
            if os.getresuid()[2] == 0:
                os.seteuid(0)
    """)
    assert script.stdout.split() == ["1000", "1000"]
    assert script.stderr.count("no thread can be started") == 1
