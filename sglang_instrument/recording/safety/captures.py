"""Call CUDA without breaking a graph that this or another thread captures.

While a thread captures a graph in CUDA's default mode, calls that wait or query break the capture, whatever
thread makes them. In the mode "relaxed" a thread may make them, unless they concern what is captured: its
stream, its events, or the whole device, as `torch.cuda.synchronize()` does.

Source: CUDA's documentation of `cuThreadExchangeStreamCaptureMode`; tests/gpu/test_gpu_captures.py.
"""

from functools import cache
from typing import Any, Final

_RELAXED: Final = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_SUCCESS: Final = 0


class BesideCaptures:
    """In this block, waiting for a stream that is not captured, and querying events, breaks no capture.

    Without CUDA's driver, as on AMD's GPUs, the block changes nothing.
    """

    __slots__ = ("_exchange", "_mode")

    def __enter__(self) -> None:
        import ctypes  # torch has imported it

        self._mode = ctypes.pointer(ctypes.c_int(_RELAXED))
        exchange = _exchange_mode()
        self._exchange = exchange if exchange is not None and exchange(self._mode) == _SUCCESS else None

    def __exit__(self, *exception: object) -> None:
        if self._exchange is not None:
            self._exchange(self._mode)  # which holds the thread's former mode now


@cache
def _exchange_mode() -> Any:
    """Return the driver's function that swaps the mode of the calling thread, or None."""
    import ctypes

    try:
        return ctypes.PyDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):
        return None
