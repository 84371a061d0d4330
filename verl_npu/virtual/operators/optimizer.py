"""npu_apply_adam_w: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_apply_adam_w.md."""

from __future__ import annotations

import torch
from torch import Tensor


def npu_apply_adam_w(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    max_grad_norm: Tensor | None,
    amsgrad: bool,
    maximize: bool,
    *,
    out: tuple[Tensor, Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of AdamW in place on `out` = (parameter, first moment, second moment), all of grad's shape; no
    gradient.

    The operator multiplies the powers by their betas once more: pass beta**(step-1).

    Raises:
        NotImplementedError: amsgrad or max_grad_norm.
    """
    if amsgrad or max_grad_norm is not None:
        raise NotImplementedError(
            "npu_apply_adam_w: amsgrad and max_grad_norm are not implemented by the virtual Ascend"
        )
    parameter, first, second = out
    with torch.no_grad():
        gradient = -grad if maximize else grad
        first.mul_(beta1).add_(gradient, alpha=1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = (second / (1 - beta2_power * beta2)).sqrt_().add_(epsilon)
        parameter.mul_(1 - lr * weight_decay)
        parameter.addcdiv_(first, scale, value=-lr / (1 - beta1_power * beta1))
    return out
