"""The operator of a rollout engine's sampler: op-plugin, op_plugin/ops/opapi/ApplyTopKTopPKernelNpuOpApi.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from .gradient import without_formula


def npu_top_k_top_p(logits: Tensor, p: Tensor | None = None, k: Tensor | None = None) -> Tensor:
    """Keep the `k` largest logits and, of these, the smallest set of most likely tokens whose probabilities add up to
    at least `p`. Set all other logits to -inf. Has no backward pass.

    Shapes: logits [B,V], p [B] with the dtype of logits, k int32 [B] -> [B,V].

    Raises:
        RuntimeError: shapes or dtypes do not match.
    """
    name = "npu_top_k_top_p"
    if logits.dim() != 2 or logits.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise RuntimeError(
            f"{name}: logits must have shape [batch, vocabulary] and dtype float16, bfloat16, or float32, but have "
            f"shape {tuple(logits.shape)} and dtype {logits.dtype}"
        )
    for what, tensor, dtype in (("p", p, logits.dtype), ("k", k, torch.int32)):
        if tensor is not None and (tensor.shape != logits.shape[:1] or tensor.dtype != dtype):
            raise RuntimeError(
                f"{name}: {what} must have shape [{logits.shape[0]}] and dtype {dtype}, but has shape "
                f"{tuple(tensor.shape)} and dtype {tensor.dtype}"
            )

    def compute() -> tuple[Tensor, ...]:
        ordered, places = logits.sort(dim=-1, stable=True)
        if k is not None:
            last = (ordered.shape[1] - k.long()).clamp(min=0).unsqueeze(1)
            ordered = ordered.masked_fill(ordered < ordered.gather(1, last), float("-inf"))
        if p is not None:
            below = ordered.float().softmax(-1).cumsum(-1) <= 1 - p.float().unsqueeze(1)
            below[:, -1] = False  # the most likely one stays
            ordered = ordered.masked_fill(below, float("-inf"))
        return (torch.empty_like(logits).scatter_(-1, places, ordered),)

    (kept,) = without_formula(name, (logits,), compute)
    return kept
