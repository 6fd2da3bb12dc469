"""Stands in for vllm's norms, which sglang 0.4.6 uses where it finds no GPU: the same sums, in torch."""

import torch


class RMSNorm(torch.nn.Module):
    offset = 0.0

    def __init__(self, hidden_size, eps=1e-6, **_):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size) - self.offset)
        self.variance_epsilon = eps

    def forward(self, x, residual=None):
        if residual is not None:
            x = residual = x + residual
        variance = x.float().pow(2).mean(-1, keepdim=True)
        scale = torch.rsqrt(variance + self.variance_epsilon) * (self.weight + self.offset)
        normed = (x.float() * scale).to(x.dtype)
        return normed if residual is None else (normed, residual)


class GemmaRMSNorm(RMSNorm):
    offset = 1.0
