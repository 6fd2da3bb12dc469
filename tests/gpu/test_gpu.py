"""On a GPU, recording creates no context, does nothing during capture, and leaves errors to the trainer.

`make test-gpu PYTHON=...` runs these tests if torch has a CUDA device; otherwise they are skipped.
"""

import json
import threading
import time

import pytest
from gpu_processes import needs_cuda, run

torch = pytest.importorskip("torch")
pytestmark = [
    needs_cuda,
    pytest.mark.filterwarnings("default"),  # torch's own warnings, which differ from version to version
]

import sglang_instrument  # noqa: E402 - after the skip
from sglang_instrument import span, step  # noqa: E402
from sglang_instrument.recording.measure import gpu_sync, spans  # noqa: E402
from sglang_instrument.recording.watch.gpu_events import HeldBack  # noqa: E402
from sglang_instrument.testing import records  # noqa: E402

POLICIES = ["auto", "always", "events"]


@pytest.fixture(params=["auto", "always"])
def policy(request):
    gpu_sync.use_policy(request.param)
    yield request.param
    gpu_sync.use_policy("off")


@pytest.fixture
def events():
    """Return the spans that `sync="events"` passes on, in this order."""
    passed = []
    held_back = HeldBack().wrap(passed)
    gpu_sync.use_policy("events")
    spans.use_buffer(held_back)
    held_back.on()
    yield passed
    held_back.off()
    spans.use_buffer(spans.OFF)
    gpu_sync.use_policy("off")


@pytest.fixture(scope="module")
def matrix():
    """A matrix whose product takes the GPU longer than the launch takes Python."""
    made = torch.randn(8192, 8192, device="cuda")
    made @ made  # the first product loads libraries
    torch.cuda.synchronize()
    return made


def multiply(matrix, times):
    """Queue products; return the CUDA events around them."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    for _ in range(times):
        matrix @ matrix
    ended.record()
    return began, ended


@pytest.mark.parametrize("sync", POLICIES)
def test_no_cuda_context_is_created_by_spans(tmp_path, sync):
    done = run(
        """
        import os, shutil, subprocess, sys
        import torch
        import sglang_instrument as si

        def has_context():
            return torch._C._cuda_hasPrimaryContext(0)

        si.install(log_dir=sys.argv[1], trainers="none", sync=sys.argv[2])
        with si.step(1), si.span("total_step_duration"), si.span("preprocessing_duration"):
            pass
        si.flush()
        assert not torch.cuda.is_initialized()
        assert not has_context()
        if shutil.which("nvidia-smi"):  # in a container it may see no process at all
            listed = subprocess.run(["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"],
                                    capture_output=True, text=True).stdout.split()
            assert str(os.getpid()) not in listed, listed
        si.uninstall()
        torch.zeros(1, device="cuda")
        assert has_context(), "the question itself is wrong"
        """,
        tmp_path,
        sync,
    )
    assert done.returncode == 0, done.stderr


def test_a_synced_span_lasts_as_long_as_its_kernels_and_one_without_does_not(policy, matrix):
    with records() as seen:
        with span("preprocessing_duration"):
            began, ended = multiply(matrix, 20)
        gpu_sync.use_policy("off")
        with span("preprocessing_duration"):
            multiply(matrix, 20)
        torch.cuda.synchronize()
    kernels = began.elapsed_time(ended) / 1e3
    assert seen[0]["duration_sec"] >= kernels * 0.99
    assert seen[1]["duration_sec"] < kernels


def test_work_queued_before_a_synced_span_is_not_counted_in_it(policy, matrix):
    with records() as seen:
        before = time.perf_counter()
        multiply(matrix, 50)
        with span("preprocessing_duration"):
            pass
        whole = time.perf_counter() - before
    assert seen[0]["duration_sec"] < whole / 4


@pytest.mark.parametrize("sync", POLICIES)
def test_spans_during_graph_capture_leave_the_capture_alone(tmp_path, sync):
    done = run(
        """
        import sys
        import torch
        import sglang_instrument as si

        si.install(log_dir=sys.argv[1], trainers="none", sync=sys.argv[2])
        static, graph = torch.zeros(16, device="cuda"), torch.cuda.CUDAGraph()
        with si.step(1), si.span("total_step_duration"):
            with si.span("preprocessing_duration"):
                static += 0
            with torch.cuda.graph(graph):
                with si.span("preprocessing_duration"):
                    static += 1
                with si.span("parse"):
                    static += 1
            graph.replay()
        torch.cuda.synchronize()
        assert static[0].item() == 2, static
        failed = [said for said in si.status()["notices"] if "failed" in said["notice"]]
        assert not failed, failed
        si.uninstall()
        """,
        tmp_path,
        sync,
    )
    assert done.returncode == 0, done.stderr


def test_a_device_tensor_is_described_without_being_read():
    with records() as seen, span("parse") as timed:
        timed.add(ids=torch.ones(3, 4, device="cuda"))
    assert seen[0]["extra"]["ids"] == "tensor(cuda:0, f32, [3, 4])"


@pytest.mark.parametrize("sync", POLICIES)
def test_an_asynchronous_error_is_left_to_the_trainer(tmp_path, sync):
    done = run(
        """
        import sys
        import torch
        import sglang_instrument as si

        si.install(log_dir=sys.argv[1], trainers="none", sync=sys.argv[2])
        values, far = torch.zeros(4, device="cuda"), torch.tensor([99], device="cuda")
        torch.cuda.synchronize()
        with si.step(1):
            with si.span("preprocessing_duration"):
                values[far]
            with si.span("parse"):
                pass
        try:
            torch.cuda.synchronize()
        except Exception as error:
            print("trainer met", type(error).__name__, flush=True)
        si.flush()
        print(open(f"{sys.argv[1]}/multiturn_log_dir/step_1/worker_0.jsonl").read(), flush=True)
        """,
        tmp_path,
        sync,
    )
    assert "trainer met" in done.stdout, done.stderr
    assert '"event":"preprocessing_duration"' in done.stdout
    assert '"error"' not in done.stdout


def test_events_give_the_time_of_the_kernels_and_wait_for_none(events, matrix):
    torch.cuda.synchronize()
    with span("preprocessing_duration"):
        began, ended = multiply(matrix, 50)
    assert not ended.query(), "the span waited for its kernels"
    assert events == []
    torch.cuda.synchronize()
    time.sleep(0.01)
    with span("parse"):
        pass
    [timed] = [span for span in events if span.event == "preprocessing_duration"]
    assert timed.device_sec == pytest.approx(began.elapsed_time(ended) / 1e3, rel=0.05)
    assert timed.duration_sec < timed.device_sec


def test_events_leave_out_what_was_queued_before(events, matrix):
    multiply(matrix, 50)
    with span("preprocessing_duration"):
        began, ended = multiply(matrix, 5)
    torch.cuda.synchronize()
    spans.current_buffer().release_finished()
    assert events[0].device_sec == pytest.approx(began.elapsed_time(ended) / 1e3, rel=0.1)


def test_events_belong_to_the_stream_in_which_the_span_began(events, matrix):
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side), span("preprocessing_duration"):
        began, ended = multiply(matrix, 5)
    torch.cuda.synchronize()
    spans.current_buffer().release_finished()
    assert events[0].device_sec == pytest.approx(began.elapsed_time(ended) / 1e3, rel=0.1)


def test_events_of_several_threads_are_each_asked_for_where_they_were_recorded(events, matrix):
    def work():
        with torch.cuda.stream(torch.cuda.Stream()), span("preprocessing_duration"):
            multiply(matrix, 5)
        torch.cuda.synchronize()
        time.sleep(0.01)
        with span("parse"):
            pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timed = [span for span in events if span.event == "preprocessing_duration"]
    assert len(timed) == 4
    assert all(span.device_sec > 0 for span in timed)


def test_device_sec_is_in_the_log(tmp_path, matrix):
    sglang_instrument.install(log_dir=tmp_path, experiment="run", trainers="none", sync="events")
    with step(1), span("total_step_duration"):
        with span("preprocessing_duration"):
            multiply(matrix, 5)
        torch.cuda.synchronize()
    sglang_instrument.uninstall()
    lines = map(json.loads, (tmp_path / "run/step_1/worker_0.jsonl").read_text().splitlines())
    [prepared] = [line for line in lines if line["event"] == "preprocessing_duration"]
    assert prepared["device_sec"] > prepared["duration_sec"]


def test_nvtx_ranges_open_and_close_without_a_notice(tmp_path):
    done = run(
        """
        import sys
        import torch
        import sglang_instrument as si

        torch.zeros(1, device="cuda")
        si.install(log_dir=sys.argv[1], trainers="none", nvtx=True)
        with si.step(1), si.span("preprocessing_duration"):
            pass
        assert not si.status()["notices"], si.status()["notices"]
        si.uninstall()
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
