"""Wait for the GPU around step-level spans, only where that cannot fail, hang or create a CUDA context."""

import sys
from collections.abc import Callable
from typing import Any, Final

from sglang_instrument.recording.safety.captures import BesideCaptures
from sglang_instrument.recording.safety.notices import log_swallowed

_Policy = Callable[[], None]


def _off() -> None:
    """Synchronise nothing."""


_synchronize: _Policy = _off


def synchronize() -> None:
    """Wait for queued work, as the policy in force says."""
    _synchronize()


def use_policy(policy: str) -> None:
    """Set when `synchronize` waits: "auto", "always", or never: "off", "events" (see `Config.sync`)."""
    global _synchronize
    _synchronize = _POLICIES[policy]


def _auto() -> None:
    """Wait for this thread's stream where this process has work on a GPU; never in a coroutine.

    In a coroutine, it would block the loop. Waiting for the whole device would break the graphs that other
    threads capture. A program's stream waits for what it needs of other streams.
    """
    # Another thread may be importing asyncio now: then it has no _get_running_loop yet.
    running_loop = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    if running_loop is None or running_loop() is None:
        _wait(_for_stream)


def _always() -> None:
    """Wait for the whole device, in coroutines too, if it is already in use and nothing is captured here."""
    _wait(_for_device)


def _wait(wait: Callable[[Any], None]) -> None:
    try:
        cuda = cuda_at_hand()
        if cuda is not None:
            wait(cuda)
    except BaseException as error:
        # Either an asynchronous error of the trainer's kernels, which its next CUDA call raises again; or
        # another thread is importing torch now.
        log_swallowed("waiting for the GPU", error)


def _for_stream(cuda: Any) -> None:
    with BesideCaptures():
        cuda.current_stream().synchronize()


def _for_device(cuda: Any) -> None:
    cuda.synchronize()


def cuda_at_hand() -> Any:
    """Return torch.cuda if this thread may call the GPU, else None.

    It may not without a CUDA context, while its stream is captured, or while torch traces it.
    """
    cuda = _cuda_in_use()
    free = cuda is not None and not cuda.is_current_stream_capturing() and not _is_compiling()
    return cuda if free else None


def _cuda_in_use() -> Any:
    """Return torch.cuda if this process has a CUDA context on its current device, without making one.

    `is_initialized()` says that torch holds a context on some device; `_cuda_hasPrimaryContext` asks the
    driver about one device and creates nothing.
    """
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if torch is None or cuda is None or not cuda.is_initialized():
        return None
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    return cuda if has_context is None or has_context(cuda.current_device()) else None


def _is_compiling() -> bool:
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return compiler is not None and compiler.is_compiling()


_POLICIES: Final[dict[str, _Policy]] = {
    "auto": _auto,
    "always": _always,
    "events": _off,  # `watch.gpu_events` measures without waiting
    "off": _off,
}
