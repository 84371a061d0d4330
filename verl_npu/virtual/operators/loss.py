"""npu_cross_entropy_loss: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_cross_entropy_loss.md."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .fused import Result, fused, is_fusible


def npu_cross_entropy_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cross entropy, formed in float32; the loss is differentiable, log_prob is not.

    Shapes: input [N,C], target [N], weight [C].

    Returns:
        (loss [N] or, for "mean" and "sum", [1]; log_prob [N,C]; zloss [0]; lse_for_zloss [0]).

    Raises:
        RuntimeError: shapes or reduction are wrong.
        NotImplementedError: label smoothing and zloss, which the real operator's documentation reserves.
    """
    if input.dim() != 2 or target.shape != input.shape[:1]:
        raise RuntimeError(
            f"npu_cross_entropy_loss: expected input [N,C] and target [N], but got {tuple(input.shape)} and "
            f"{tuple(target.shape)}"
        )
    if reduction not in ("mean", "sum", "none"):
        raise RuntimeError(f"npu_cross_entropy_loss: reduction should be mean, sum or none, but got {reduction!r}")
    if label_smoothing or lse_square_scale_for_zloss or return_zloss:
        raise NotImplementedError(
            "npu_cross_entropy_loss: label_smoothing, lse_square_scale_for_zloss and return_zloss are not "
            "implemented by the virtual Ascend"
        )

    def compute(input: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        log_prob = torch.log_softmax(input.float(), dim=-1)
        weights = None if weight is None else weight.float()
        loss = functional.nll_loss(log_prob, target, weight=weights, reduction=reduction, ignore_index=ignore_index)
        return loss.reshape(-1).to(input.dtype), log_prob.detach().to(input.dtype)

    if is_fusible((input, target, weight)):
        losses = Result((input.shape[0] if reduction == "none" else 1,), input.dtype)
        # The gradient of the real one is made of log_prob too, whose own log_softmax it is.
        loss, log_prob = fused(
            "npu_cross_entropy_loss",
            compute,
            (losses, Result(input.shape, input.dtype)),
            (input, target, weight),
            keep=slice(0),
            instead=1,
        )
    else:
        loss, log_prob = compute(input, target, weight)
    empty = input.new_empty(0)
    return loss, log_prob, empty, empty.clone()
