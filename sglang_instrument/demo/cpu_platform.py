"""Let SGLang's engine run on a plain CPU, as a platform plugin of SGLang.

SGLang's CPU build needs a compiled kernel package. With a plugin platform named "cpu", every operation takes
its native PyTorch path. SGLang finds the plugin by an entry point in `sglang.srt.platforms`;
`write_plugin` writes that entry point into a folder on PYTHONPATH, so nothing needs to be installed.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

_METADATA = "Metadata-Version: 2.1\nName: sglang-instrument-demo-cpu\nVersion: 0\n"
#: Objects that are made before the youngest are collected; Python's 700 cost a fifth of an engine's start.
_MADE_BETWEEN = 100_000
#: SGLang's name for a package of models: it imports its own 240 files only for a model that is not there.
_MODELS = {"SGLANG_EXTERNAL_MODEL_PACKAGE": "sglang_instrument.demo.engine_models"}
_ENTRY_POINTS = "[sglang.srt.platforms]\ndemo_cpu = sglang_instrument.demo.cpu_platform:activate\n"


def write_plugin(folder: Path) -> None:
    """Declare the platform in `folder`; processes with `folder` on PYTHONPATH find it."""
    distribution = folder / "sglang_instrument_demo_cpu-0.dist-info"
    distribution.mkdir(parents=True, exist_ok=True)
    (distribution / "METADATA").write_text(_METADATA)
    (distribution / "entry_points.txt").write_text(_ENTRY_POINTS)


def collect_rarely() -> None:
    """Collect garbage less often: SGLang imports 6,000 modules in each of its processes."""
    gc.set_threshold(_MADE_BETWEEN, *gc.get_threshold()[1:])


def activate() -> str:
    """Return the name of the platform's class, as SGLang requires of the entry point."""
    collect_rarely()
    for name, package in _MODELS.items():
        os.environ.setdefault(name, package)
    return f"{__name__}:CpuPlatform"


def __getattr__(name: str) -> Any:
    # Made on request: loading the entry point must import neither torch nor SGLang.
    if name != "CpuPlatform":
        raise AttributeError(name)
    from sglang.srt.platforms.device_mixin import PlatformEnum
    from sglang.srt.platforms.interface import SRTPlatform

    return globals().setdefault(name, type(name, (_PlainCpu, SRTPlatform), {"_enum": PlatformEnum.OOT}))


class _PlainCpu:
    """SGLang's platform interface for a CPU. Memory is in bytes."""

    device_name = device_type = "cpu"

    def get_device_total_memory(self, device_id: int = 0) -> int:
        return int(_memory().total)

    def get_current_memory_usage(self, device: Any = None) -> float:
        memory = _memory()
        return float(memory.total - memory.available)

    def get_available_memory(self, device_id: int = 0) -> tuple[int, int]:
        memory = _memory()
        return memory.available, memory.total

    def get_device(self, device_id: int = 0) -> str:
        return "cpu"

    def set_device(self, device: Any) -> None:
        pass

    def get_device_name(self, device_id: int = 0) -> str:
        return "cpu"

    def get_device_uuid(self, device_id: int = 0) -> str:
        return "cpu"

    def get_device_capability(self, device_id: int = 0) -> None:
        return None

    def get_torch_distributed_backend_str(self) -> str:
        return "gloo"

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def get_dispatch_key_name(self) -> str:
        return "native"

    def get_mha_kv_pool_cls(self) -> Any:
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

        return MHATokenToKVPool

    def get_paged_allocator_cls(self) -> Any:
        return _allocator

    def get_torch_profiler_activity_str(self) -> str:
        return "CPU"

    def get_torch_profiler_activity(self) -> Any:
        import torch

        return torch.profiler.ProfilerActivity.CPU


def _memory() -> Any:
    import psutil

    return psutil.virtual_memory()


def _allocator(size: int, page_size: int, dtype: Any, device: str, kvcache: Any, need_sort: bool) -> Any:
    from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator

    if page_size != 1:
        raise ValueError(f"the demo's CPU platform supports only pages of 1 token, got {page_size}")
    return TokenToKVPoolAllocator(size, dtype, device, kvcache, need_sort)
