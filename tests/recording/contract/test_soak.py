"""Over ten thousand steps, descriptors, threads and memory stay as they were after the first thousand."""

import json

SOAK = """
    import asyncio, json, os, resource, threading
    import sglang_instrument as si
    from sglang_instrument.recording.measure import scopes, spans, tasks

    si.install()

    def size():
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count(),
            "resident_mb": pages * resource.getpagesize() / 2**20,
            "scopes": len(scopes.scopes()),
            "known_threads": len(tasks._threads),
            "open_spans": len(spans.OPEN),
        }

    def request(number):
        with si.bind(request_id=f"r{number}"), si.span("async_rollout_request_complete", n=number):
            with si.bind(turn=0), si.span("tool_execution", text="x" * 100):
                pass

    async def rollout(number):
        async def one(index):
            request(index)
            await asyncio.sleep(0)
        await asyncio.gather(*(one(number * 4 + index) for index in range(4)))

    sizes = []
    for number in range(10_000):
        with si.step(number), si.span("total_step_duration"):
            if number % 20 == 0:
                asyncio.run(rollout(number))
            elif number % 20 == 1:
                thread = threading.Thread(target=request, args=(number,))
                thread.start()
                thread.join()
            else:
                request(number)
            si.event(f"event_{number}")  # names without end are remembered up to a bound
        if number % 100 == 99:
            assert si.flush(600)
        if number in (999, 9_999):
            sizes.append(size())
    records = si.status()["records"]
    si.uninstall()
    print(json.dumps([*sizes, records, len(os.listdir("/proc/self/fd"))]))
"""


def test_ten_thousand_steps_leave_descriptors_threads_and_memory_flat(start_script):
    early, late, records, descriptors_afterwards = json.loads(start_script(SOAK).wait().stdout)
    assert (
        late["descriptors"] <= early["descriptors"] <= descriptors_afterwards + 4
    )  # two files and the lock file
    assert late["threads"] <= early["threads"]
    assert late["resident_mb"] - early["resident_mb"] < 8
    assert late["scopes"] <= early["scopes"] <= 110
    assert late["known_threads"] < early["known_threads"] + 100  # of 500 that ended; numbers are used again
    assert late["open_spans"] == 0
    assert records["dropped"] == records["waiting"] == 0
