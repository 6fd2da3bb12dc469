"""Start the real SGLang engine for a tiny model, on a GPU or the CPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

from sglang_instrument.demo.cpu_platform import write_plugin
from sglang_instrument.free_ports import free_port

#: Enough for all requests of a worker at once; larger pools only slow down the engine's start.
MAX_TOTAL_TOKENS: Final = 8192
MAX_RUNNING_REQUESTS: Final = 16

_CPU: Final[dict[str, Any]] = {
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "disable_cuda_graph": True,
    "disable_overlap_schedule": True,
    "chunked_prefill_size": 512,
    "mem_fraction_static": 0.2,
    "sleep_on_idle": True,  # else an idle scheduler keeps a core busy, of which there are few
}
#: Several workers share a GPU if there are fewer GPUs than workers, so each uses little of its memory.
_CUDA: Final[dict[str, Any]] = {"device": "cuda", "dtype": "float32", "mem_fraction_static": 0.1}


def start_engine(model: Path, *, rank: int, context_length: int, scratch: Path) -> Any:
    """Start an engine for one worker: on a GPU if PyTorch finds one, else on the CPU.

    Call this before any import of sglang, which looks for platforms at import.

    Args:
        model: Folder of the model and its tokenizer.
        rank: Rank of the worker, which chooses its GPU.
        context_length: Maximum tokens of a request, prompt and replies together.
        scratch: This worker's own folder; the CPU platform is declared there.
    """
    device = _device_arguments(rank, scratch)
    import sglang

    return sglang.Engine(
        model_path=str(model),
        context_length=context_length,
        max_total_tokens=MAX_TOTAL_TOKENS,
        max_running_requests=MAX_RUNNING_REQUESTS,
        skip_server_warmup=True,
        enable_metrics=True,  # so that replies contain their queue time
        log_level="error",
        nccl_port=free_port(),  # SGLang's own choice may be that of an engine that starts beside it
        **device,
    )


def _device_arguments(rank: int, scratch: Path) -> dict[str, Any]:
    import torch

    if torch.cuda.is_available():
        return {**_CUDA, "base_gpu_id": rank % torch.cuda.device_count()}
    write_plugin(scratch)
    sys.path.insert(0, str(scratch))  # for this process; PYTHONPATH is for the engine's processes
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(scratch), os.environ.get("PYTHONPATH"))))
    return _CPU
