"""Stands in for the kernels that sglang takes from vllm where it finds no GPU."""

import torch


def scaled_fp8_quant(*args, **kwargs):
    raise NotImplementedError("no GPU: scaled_fp8_quant")


def rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox):
    """Rotate query and key in place: [tokens, heads * head_size] each."""
    cos, sin = cos_sin_cache.index_select(0, positions.flatten()).unsqueeze(1).chunk(2, dim=-1)
    rotated = cos.shape[-1] * 2
    for tensor in (query, key):
        heads = tensor.view(cos.shape[0], -1, head_size)
        x = heads[..., :rotated].float()
        a, b = x.chunk(2, dim=-1) if is_neox else (x[..., 0::2], x[..., 1::2])
        p, q = a * cos - b * sin, b * cos + a * sin
        joined = torch.cat((p, q), -1) if is_neox else torch.stack((p, q), -1).flatten(-2)
        heads[..., :rotated] = joined.to(heads.dtype)
