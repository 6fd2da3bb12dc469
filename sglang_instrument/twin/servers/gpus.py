"""Say which GPUs a server would use, and refuse those whose memory is in use."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Final, NamedTuple

from sglang_instrument.errors import InstrumentError

_MOST_USED: Final = 0.05  # of the memory: a driver takes some of it
_QUERY: Final = ("--query-gpu=index,uuid,memory.used,memory.total", "--format=csv,noheader,nounits")


class GpuMemory(NamedTuple):
    """A GPU, with its memory in MiB."""

    number: str
    uuid: str
    used_mib: float
    total_mib: float


def visible_gpus() -> list[GpuMemory]:
    """Return the GPUs that a server would see; none without a driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    answer = subprocess.run([program, *_QUERY], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    gpus = parsed(answer.stdout) if answer.returncode == 0 else []
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return gpus
    names = [name.strip() for name in chosen.split(",") if name.strip()]
    return [gpu for name in names for gpu in gpus if name == gpu.number or gpu.uuid.startswith(name)]


def parsed(printed: str) -> list[GpuMemory]:
    """Return what `nvidia-smi` printed; a GPU that tells no memory (MIG) is left out."""
    gpus = []
    for line in printed.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        try:
            number, uuid, used, total = cells
            gpus.append(GpuMemory(number, uuid, float(used), float(total)))
        except ValueError:
            continue
    return gpus


def demand_free(gpus: Sequence[GpuMemory]) -> None:
    """Raise if the memory of a GPU is in use: a server there would measure its neighbour.

    Raises:
        InstrumentError: It is; the message names the GPU.
    """
    for gpu in gpus:
        if gpu.used_mib > _MOST_USED * gpu.total_mib:
            raise InstrumentError(
                f"GPU {gpu.number}: {gpu.used_mib:,.0f} of {gpu.total_mib:,.0f} MiB are in use; the twin "
                "needs GPUs of its own: stop what runs there, or choose others by CUDA_VISIBLE_DEVICES"
            )


def shares(gpus: Sequence[GpuMemory], servers: int, per_server: int) -> list[str | None]:
    """Return CUDA_VISIBLE_DEVICES of each server; None leaves it as it is.

    Raises:
        InstrumentError: There are GPUs, and fewer than the servers need.
    """
    if not gpus or servers == 1:
        return [None] * servers
    if len(gpus) < servers * per_server:
        raise InstrumentError(
            f"{servers} servers of {per_server} GPUs each need {servers * per_server} GPUs; "
            f"{len(gpus)} are visible"
        )
    uuids = [gpu.uuid for gpu in gpus]
    return [",".join(uuids[per_server * place :][:per_server]) for place in range(servers)]
