"""Dropout, with the mask that torch_npu keeps for its backward."""

from __future__ import annotations

import torch

__all__ = ["dropout", "dropout_backward"]


def _generator() -> torch.Generator:
    """Random numbers that follow from the state of the NPU's generator, and leave the CPU's own alone."""
    npu = torch.npu.default_generators[torch.npu.current_device()]
    return torch.Generator().manual_seed(hash((npu.initial_seed(), npu.get_offset())) & 0x7FFF_FFFF)


def dropout(input: torch.Tensor, p: float) -> tuple[object, ...]:
    """The mask has a bit for each element, in whole groups of 128."""
    kept = torch.rand(input.shape, generator=_generator()) >= p
    bits = torch.nn.functional.pad(kept.flatten().to(torch.uint8), (0, -kept.numel() % 128)).view(-1, 8)
    mask = (bits << torch.arange(8, dtype=torch.uint8)).sum(1).to(torch.uint8)
    return input * kept / (1 - p) if p < 1 else torch.zeros_like(input), mask


def dropout_backward(grad_output: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    bits = (mask.flatten().unsqueeze(1) >> torch.arange(8, dtype=torch.uint8)) & 1
    kept = bits.flatten()[: grad_output.numel()].view(grad_output.shape)
    return grad_output * kept / (1 - p) if p < 1 else torch.zeros_like(grad_output)
