"""Spans wait for the GPU only if it is in use; without a GPU nothing happens."""

import asyncio
import sys
import types

import pytest

from sglang_instrument import span, step
from sglang_instrument.recording.measure import gpu_sync, spans
from sglang_instrument.recording.measure.spans import kind_for
from sglang_instrument.recording.safety import notices
from sglang_instrument.recording.watch import nvtx
from sglang_instrument.testing import records


class StandInCuda(types.SimpleNamespace):
    """Stands in for torch.cuda on a machine without a GPU, and counts the calls."""

    def __init__(self, **state):
        super().__init__(initialized=True, context=True, capturing=False, compiling=False, fails=False)
        self.__dict__.update(state)
        self.waits = self.device_waits = 0

    def is_initialized(self):
        return self.initialized

    def current_device(self):
        return 0

    def is_current_stream_capturing(self):
        return self.capturing

    def current_stream(self):
        return types.SimpleNamespace(synchronize=self.wait)

    def synchronize(self):
        self.device_waits += 1
        self.wait()

    def wait(self):
        self.waits += 1
        if self.fails:
            raise RuntimeError("CUDA error: device-side assert triggered")


@pytest.fixture
def gpu(monkeypatch):
    def make(policy, **state):
        cuda = StandInCuda(**state)
        torch = types.SimpleNamespace(
            cuda=cuda,
            _C=types.SimpleNamespace(_cuda_hasPrimaryContext=lambda index: cuda.context),
            compiler=types.SimpleNamespace(is_compiling=lambda: cuda.compiling),
        )
        monkeypatch.setitem(sys.modules, "torch", torch)
        gpu_sync.use_policy(policy)
        return cuda

    yield make
    gpu_sync.use_policy("off")
    notices.forget()


def measured():
    with records() as seen, step(1), span("preprocessing_duration"):
        pass
    return seen


@pytest.mark.parametrize("policy", ["auto", "always"])
def test_a_step_level_span_waits_at_both_ends(gpu, policy):
    cuda = gpu(policy)
    measured()
    assert cuda.waits == 2


@pytest.mark.parametrize(("policy", "waits"), [("auto", 0), ("always", 2)])
def test_only_always_waits_for_the_whole_device(gpu, policy, waits):
    cuda = gpu(policy)
    measured()
    assert cuda.device_waits == waits


@pytest.mark.parametrize(
    "state", [{"initialized": False}, {"context": False}, {"capturing": True}, {"compiling": True}]
)
@pytest.mark.parametrize("policy", ["auto", "always"])
def test_nothing_waits_without_a_context_or_while_something_is_captured(gpu, policy, state):
    cuda = gpu(policy, **state)
    measured()
    assert cuda.waits == 0


def test_auto_never_waits_in_a_coroutine_and_always_does(gpu):
    async def run():
        measured()

    cuda = gpu("auto")
    asyncio.run(run())
    assert cuda.waits == 0
    cuda = gpu("always")
    asyncio.run(run())
    assert cuda.waits == 2


def test_an_error_of_the_gpu_is_left_to_the_trainer_and_said_once(gpu):
    cuda = gpu("always", fails=True)
    seen = measured()
    assert cuda.waits == 2
    assert "error" not in seen[0]
    assert len(notices.noticed()) == 1


def test_after_an_exception_the_gpu_is_not_waited_for(gpu):
    cuda = gpu("always")
    with records() as seen, pytest.raises(KeyError), span("preprocessing_duration"):
        raise KeyError
    assert cuda.waits == 1
    assert seen[0]["error"] == "KeyError"


def test_spans_of_requests_never_wait(gpu):
    cuda = gpu("always")
    with records(), span("turn_engine_call"), span("tool_execution"):
        pass
    assert cuda.waits == 0


def test_sync_can_be_set_for_an_event_by_name(gpu):
    cuda = gpu("always")
    with records(), kind_for("mine", sync=True)("mine"):
        pass
    with records(), kind_for("preprocessing_duration", sync=False)("preprocessing_duration"):
        pass
    assert cuda.waits == 2


def test_without_torch_no_gpu_function_is_called(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    gpu_sync.use_policy("always")
    measured()
    gpu_sync.use_policy("off")


def test_nvtx_shows_each_span_once_or_says_why_not(monkeypatch):
    ranges = []
    shown = types.SimpleNamespace(
        range_start=lambda name: ranges.append(name) or name, range_end=ranges.remove
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=types.SimpleNamespace(nvtx=shown)))
    with records() as seen:
        spans.use_buffer(nvtx.Ranges(seen))
        nvtx.on()
        try:
            with step(1), span("outer"), span("tool_execution"):
                assert ranges == ["outer", "tool_execution"]
        finally:
            nvtx.off()
    assert ranges == []
    assert len(seen) == 2


def test_nvtx_without_a_cuda_build_is_said_once_and_turned_off(monkeypatch):
    def fails(name):
        raise RuntimeError("NVTX functions not installed")

    shown = types.SimpleNamespace(range_start=fails)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=types.SimpleNamespace(nvtx=shown)))
    with records() as seen, step(1):
        nvtx.on()
        for _ in range(3):
            with span("outer"):
                pass
    assert len(seen) == 3
    assert [said["times"] for said in notices.noticed()] == [1]
    notices.forget()
