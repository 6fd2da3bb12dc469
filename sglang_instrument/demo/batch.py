"""Hold a batch that a trainer and its rollout exchange; pad and broadcast its content."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist


class TensorDict(dict[str, torch.Tensor]):
    """Tensors by name; all have the same first dimension."""

    def __init__(self, tensors: dict[str, torch.Tensor], batch_size: int) -> None:
        for name, tensor in tensors.items():
            if tensor.shape[0] != batch_size:
                raise ValueError(f"{name} has {tensor.shape[0]} rows, the batch has {batch_size}")
        super().__init__(tensors)
        self.batch_size = batch_size


@dataclass
class DataProto:
    """A batch: tensors, lists with one entry per row for other values, and values for the whole batch."""

    batch: TensorDict = field(default_factory=lambda: TensorDict({}, batch_size=0))
    non_tensor_batch: dict[str, list[Any]] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)


def pad_sequence_to_length(
    tensor: torch.Tensor, length: int, value: int, *, left_pad: bool = False
) -> torch.Tensor:
    """Pad the last dimension of [rows, tokens] with `value` up to `length`; longer rows stay unchanged."""
    missing = max(0, length - tensor.shape[-1])
    return torch.nn.functional.pad(tensor, (missing, 0) if left_pad else (0, missing), value=value)


def broadcast_pyobj(objects: list[Any], *, rank: int, group: dist.ProcessGroup, src: int) -> list[Any]:
    """Send a list of objects from rank `src` to every rank of the group; every rank returns the list."""
    sent = pickle.dumps(objects) if rank == src else b""
    size = torch.tensor([len(sent)], dtype=torch.long)
    dist.broadcast(size, src=src, group=group)
    content = torch.zeros(int(size.item()), dtype=torch.uint8)
    if rank == src:
        content = torch.frombuffer(bytearray(sent), dtype=torch.uint8)
    dist.broadcast(content, src=src, group=group)
    received: list[Any] = pickle.loads(content.numpy().tobytes())  # noqa: S301 - another rank of this program sent it
    return received
