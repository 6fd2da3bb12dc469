"""On a GPU: no context of ours, nothing during capture, true durations, errors left to the trainer.

Skipped where there is none; the reason is printed.
"""

import subprocess
import sys
import textwrap
import time

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: none here")

from sglang_instrument import span  # noqa: E402 - after the skip
from sglang_instrument.recording import device  # noqa: E402
from sglang_instrument.testing import records  # noqa: E402


@pytest.fixture(params=["auto", "always"])
def policy(request):
    device.use_policy(request.param)
    yield request.param
    device.use_policy("off")


def run(script):
    code = textwrap.dedent(script)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def test_no_cuda_context_is_created_by_spans(tmp_path):
    done = run(f"""
        import os, subprocess, torch, sglang_instrument as si
        si.install(log_dir={str(tmp_path)!r}, sync="always")
        with si.step(1), si.span("total_step_duration"), si.span("preprocessing_duration"):
            pass
        assert not torch.cuda.is_initialized()
        pids = subprocess.run(["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"],
                              capture_output=True, text=True).stdout.split()
        assert str(os.getpid()) not in pids, pids
        si.uninstall()
    """)
    assert done.returncode == 0, done.stderr


def test_a_synced_span_lasts_as_long_as_its_kernels(policy):
    matrix = torch.randn(8192, 8192, device="cuda")
    matrix @ matrix
    torch.cuda.synchronize()
    with records() as seen:
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with span("preprocessing_duration"):
            began.record()
            for _ in range(20):
                matrix @ matrix
            ended.record()
    kernels = began.elapsed_time(ended) / 1e3
    assert kernels <= seen[0]["duration_sec"] <= kernels + 0.1


def test_work_queued_before_a_synced_span_is_not_counted_in_it(policy):
    matrix = torch.randn(8192, 8192, device="cuda")
    torch.cuda.synchronize()
    with records() as seen:
        before = time.perf_counter()
        for _ in range(50):
            matrix @ matrix
        with span("preprocessing_duration"):
            pass
        whole = time.perf_counter() - before
    assert seen[0]["duration_sec"] < whole / 4


def test_spans_during_graph_capture_leave_the_capture_alone(policy):
    static = torch.zeros(16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with records(), torch.cuda.graph(graph), span("preprocessing_duration"):
        static += 1
    graph.replay()
    torch.cuda.synchronize()
    assert static[0].item() == 1


def test_a_device_tensor_is_described_without_being_read():
    with records() as seen, span("parse") as timed:
        timed.add(ids=torch.ones(3, 4, device="cuda"))
    assert seen[0]["extra"]["ids"] == "tensor(cuda:0, f32, [3, 4])"


def test_an_asynchronous_error_is_left_to_the_trainer(tmp_path):
    done = run(f"""
        import torch, sglang_instrument as si
        si.install(log_dir={str(tmp_path)!r}, sync="always")
        with si.step(1):
            with si.span("preprocessing_duration"):
                torch.zeros(4, device="cuda")[torch.tensor([99], device="cuda")]
        try:
            torch.cuda.synchronize()
        except Exception as error:
            print("trainer met", type(error).__name__)
        si.uninstall()
    """)
    assert "trainer met" in done.stdout, done.stderr


def test_nvtx_ranges_open_and_close_without_a_notice(tmp_path):
    done = run(f"""
        import torch, sglang_instrument as si
        torch.zeros(1, device="cuda")
        si.install(log_dir={str(tmp_path)!r}, nvtx=True)
        with si.step(1), si.span("preprocessing_duration"):
            pass
        assert not si.status()["notices"], si.status()["notices"]
        si.uninstall()
    """)
    assert done.returncode == 0, done.stderr
