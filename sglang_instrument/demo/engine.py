"""Start the real SGLang engine with arguments that suit a tiny model and the machine's device."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

from sglang_instrument.demo.cpu_platform import write_plugin

#: Enough for all requests of a worker at once; larger pools only make the engine start later.
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
#: Several workers share a GPU when there are fewer GPUs than workers, so each takes little of it.
_CUDA: Final[dict[str, Any]] = {"device": "cuda", "dtype": "float32", "mem_fraction_static": 0.1}


def start_engine(model: Path, *, rank: int, context_length: int, scratch: Path) -> Any:
    """Start an engine for one worker: on a GPU where PyTorch has one, else on the CPU.

    Call it before anything imports sglang, which looks for platforms when it is imported.

    Args:
        model: Folder of the model and its tokenizer.
        rank: Rank of the worker, which chooses its GPU.
        context_length: Most tokens of a request, prompt and replies together.
        scratch: Folder of this worker alone, in which the CPU platform is declared.
    """
    device = _device_arguments(rank, scratch)
    import sglang

    return sglang.Engine(
        model_path=str(model),
        context_length=context_length,
        max_total_tokens=MAX_TOTAL_TOKENS,
        max_running_requests=MAX_RUNNING_REQUESTS,
        skip_server_warmup=True,
        enable_metrics=True,  # then a reply says how long it waited in the queue
        log_level="error",
        **device,
    )


def _device_arguments(rank: int, scratch: Path) -> dict[str, Any]:
    import torch

    if torch.cuda.is_available():
        return {**_CUDA, "base_gpu_id": rank % torch.cuda.device_count()}
    write_plugin(scratch)
    sys.path.insert(0, str(scratch))  # for this process; the variable is for those that the engine starts
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(scratch), os.environ.get("PYTHONPATH"))))
    return _CPU
