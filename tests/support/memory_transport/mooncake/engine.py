"""Copy the cache from one process of this machine to another, under the name of Mooncake's transfer engine.

SGLang's own code of both servers runs as it is: the handshake, the queues and the threads that send. Only the
copy itself is another one: the kernel's `process_vm_writev`, into the process that the address names.
"""

import ctypes
import os
import time

_LIBC = ctypes.CDLL(None, use_errno=True)
_SET_TRACER, _ANY = 0x59616D61, ctypes.c_ulong(-1)
#: Seconds by which each copy is made longer.
_LATE_SEC = float(os.environ.get("MEMORY_TRANSPORT_SEC", "0"))


class _Part(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("length", ctypes.c_size_t))


class TransferEngine:
    """What `sglang.srt.distributed.device_communicators.mooncake_transfer_engine` calls."""

    def initialize(self, hostname: str, metadata: str, protocol: str, device: str) -> int:
        _LIBC.prctl(_SET_TRACER, _ANY, 0, 0, 0)  # the prefill server's processes may write here
        return 0

    def get_rpc_port(self) -> int:
        """Return the id of this process: the address of its memory."""
        return os.getpid()

    def register_memory(self, start: int, length: int) -> int:
        return 0

    def batch_register_memory(self, starts: list[int], lengths: list[int]) -> int:
        return 0

    def unregister_memory(self, start: int) -> int:
        return 0

    def batch_unregister_memory(self, starts: list[int]) -> int:
        return 0

    def transfer_sync_write(self, session: str, source: int, destination: int, length: int) -> int:
        return self.batch_transfer_sync_write(session, [source], [destination], [length])

    def batch_transfer_sync_write(
        self, session: str, sources: list[int], destinations: list[int], lengths: list[int]
    ) -> int:
        """Copy parts into the process that a session names; return 0, or -1 if it is gone."""
        time.sleep(_LATE_SEC)
        process = int(session.rpartition(":")[2])
        for source, destination, length in zip(sources, destinations, lengths, strict=True):
            here, beyond = _Part(source, length), _Part(destination, length)
            copied = _LIBC.process_vm_writev(
                process, ctypes.byref(here), 1, ctypes.byref(beyond), 1, ctypes.c_ulong(0)
            )
            if copied != length:
                return -1
        return 0
