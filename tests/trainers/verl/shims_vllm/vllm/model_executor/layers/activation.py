"""Stands in for the two layers that sglang takes from vllm where it finds no GPU: the same sums, in torch."""

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it


class SiluAndMul(torch.nn.Module):
    def forward(self, x):
        half = x.shape[-1] // 2
        return F.silu(x[..., :half]) * x[..., half:]


class GeluAndMul(torch.nn.Module):
    def __init__(self, approximate="tanh"):
        super().__init__()
        self.approximate = approximate

    def forward(self, x):
        half = x.shape[-1] // 2
        return F.gelu(x[..., :half], approximate=self.approximate) * x[..., half:]
