"""NVIDIA's driver tells what the GPUs do, as torch sees it too; no context is made, and a look is cheap.

Needs the driver's libnvidia-ml.so.1, which is loaded by name: no package.
"""

import time

import pytest
from gpu_processes import needs_cuda, run

torch = pytest.importorskip("torch")
pytestmark = [needs_cuda, pytest.mark.filterwarnings("default")]

from sglang_instrument.analysis.reading.records.gpu_records import gpu_rows, gpus_opened  # noqa: E402
from sglang_instrument.live.outside.gpus import GpuSampler  # noqa: E402
from sglang_instrument.live.outside.nvml import Nvml, NvmlError  # noqa: E402

LOOK_CPU_SEC = 0.01  # of one GPU, once a second: 1 % of a core of the follower's process


@pytest.fixture(scope="module")
def nvml():
    try:
        return Nvml()
    except NvmlError as error:
        pytest.skip(f"the driver's library does not answer: {error}")


def test_name_and_memory_are_those_that_torch_tells(nvml):
    known = torch.cuda.get_device_properties(0)
    name, memory_bytes = nvml.devices[0]
    assert name == known.name
    assert known.total_memory <= memory_bytes <= 1.2 * known.total_memory
    assert nvml.driver.split(".")[0].isdecimal()


def test_a_busy_gpu_is_busy_and_holds_what_was_allocated(nvml):
    before = nvml.read()[0]
    matrix = torch.randn(8192, 8192, device="cuda")
    held = torch.zeros(2**30, dtype=torch.uint8, device="cuda")
    until = time.monotonic() + 3
    while time.monotonic() < until:
        for _ in range(20):
            matrix @ matrix
        torch.cuda.synchronize()
    busy = nvml.read()[0]
    assert busy.busy_share > 0.5
    assert busy.memory_used_bytes - before.memory_used_bytes > 0.9 * held.numel()
    assert busy.power_watts is None or busy.power_watts > 50
    assert busy.sm_clock_mhz is None or busy.sm_clock_mhz > 200
    assert busy.clock_limits is None or "idle" not in busy.clock_limits
    print(f"\nbusy: {busy}, before: {before}")


def test_a_look_costs_little_cpu(nvml):
    begun = time.process_time()
    for _ in range(100):
        nvml.read()
    look_sec = (time.process_time() - begun) / 100
    print(f"\na look at {len(nvml.devices)} GPUs: {1e3 * look_sec:.3f} ms of CPU")
    assert look_sec < LOOK_CPU_SEC * len(nvml.devices)


def test_the_follower_makes_no_context_and_writes_what_it_reads(nvml, tmp_path):
    done = run(
        """
        import ctypes, sys, time
        from pathlib import Path
        from sglang_instrument.live.outside.gpus import GpuSampler

        sampler = GpuSampler(Path(sys.argv[1]))
        sampler.want("run-1", is_running=True)
        time.sleep(3.5)
        assert sampler.newest(), "no GPU"
        sampler.close()
        assert "torch" not in sys.modules
        assert "libnvidia-ml" in Path("/proc/self/maps").read_text()
        # NVML of newer drivers loads libcuda.so itself (580 does). Ask that library whether a context exists.
        flags, active = ctypes.c_uint(), ctypes.c_int()
        cuda = ctypes.CDLL("libcuda.so.1")
        answer = cuda.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
        not_initialized = 3
        assert answer == not_initialized or (answer == 0 and not active.value), (answer, active.value)
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    rows = list(gpu_rows(tmp_path))
    assert len({row.at_us for row in rows}) >= 3
    assert {row.gpu for row in rows} == set(range(len(nvml.devices)))
    assert rows[0].memory_bytes == nvml.devices[0].memory_bytes
    (opened,) = gpus_opened(tmp_path)
    assert opened.driver == nvml.driver


def test_a_closed_sampler_leaves_no_thread(nvml, tmp_path):
    import threading

    sampler = GpuSampler(tmp_path)
    sampler.want("run-1", is_running=True)
    sampler.wait(10)
    sampler.close()
    assert "gpus" not in {thread.name for thread in threading.enumerate()}
