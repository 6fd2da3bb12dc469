"""While spans are recorded, in this or another thread, graphs are captured as without us.

Each test runs in a process of its own: after a broken capture, torch captures no more.
"""

import pytest
from gpu_processes import needs_cuda, run

pytestmark = needs_cuda

CAPTURE_BESIDE_A_THREAD = """
    import sys, threading
    import torch
    import sglang_instrument as si

    values = torch.ones(64, 64, device="cuda")
    values @ values  # loads libraries, which no capture may do
    torch.cuda.synchronize()
    ready, capturing, over, recorded = threading.Event(), threading.Event(), threading.Event(), []

    def record():
        with torch.cuda.stream(torch.cuda.Stream()), si.step(1):
            for _ in range(3):  # spans that `sync="events"` asks for later
                with si.span("preprocessing_duration"):
                    values + 1
            ready.set()  # from now on this thread records, and uses the GPU no more
            while not over.is_set():
                with si.span("preprocessing_duration"), si.span("parse"):
                    during = capturing.is_set()
                recorded.append(during and capturing.is_set())

    si.install(log_dir=sys.argv[1], experiment="run", trainers="none", sync=sys.argv[2])
    thread = threading.Thread(target=record)
    thread.start()
    ready.wait()
    try:
        for _ in range(20):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                product = values @ values
                capturing.set()
                before = len(recorded)
                while len(recorded) < before + 20:
                    pass
                capturing.clear()
                product = product + 1
            graph.replay()
        torch.cuda.synchronize()
        assert product[0, 0].item() == 65, product
        print("captured", flush=True)
    finally:
        over.set()
        thread.join()
        si.uninstall()
        print(sum(recorded), "spans meanwhile", [said["notice"] for said in si.status()["notices"]])
"""


@pytest.mark.parametrize("sync", ["auto", "events", "off"])
def test_a_graph_is_captured_while_another_thread_records(tmp_path, sync):
    done = run(CAPTURE_BESIDE_A_THREAD, tmp_path, sync)
    assert done.stdout.startswith("captured"), done.stdout + done.stderr
    assert int(done.stdout.split()[1]) >= 200
    assert "skipped" not in done.stdout


def test_a_wait_for_the_whole_device_breaks_it(tmp_path):
    done = run(CAPTURE_BESIDE_A_THREAD, tmp_path, "always")
    assert "captured" not in done.stdout, "then `auto` could wait for the device, too"


@pytest.mark.parametrize("sync", ["auto", "events"])
def test_a_graph_is_captured_while_its_own_thread_records_in_another_stream(tmp_path, sync):
    done = run(
        """
        import sys
        import torch
        import sglang_instrument as si

        si.install(log_dir=sys.argv[1], experiment="run", trainers="none", sync=sys.argv[2])
        values, side, graph = torch.ones(64, 64, device="cuda"), torch.cuda.Stream(), torch.cuda.CUDAGraph()
        values @ values
        torch.cuda.synchronize()
        with si.step(1):
            with torch.cuda.stream(side), si.span("preprocessing_duration"):
                values + 1
            with torch.cuda.graph(graph):
                product = values @ values
                with torch.cuda.stream(side), si.span("preprocessing_duration"):
                    pass
                product = product + 1
            graph.replay()
        torch.cuda.synchronize()
        assert product[0, 0].item() == 65, product
        assert not [said for said in si.status()["notices"] if "skipped" in said["notice"]]
        si.uninstall()
        """,
        tmp_path,
        sync,
    )
    assert done.returncode == 0, done.stdout + done.stderr
