"""Switches of torch.npu that change how a real NPU computes; here they are only remembered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Config:
    """`torch.npu.config`."""

    allow_internal_format: bool = True


@dataclass(slots=True)
class Matmul:
    """`torch.npu.matmul`."""

    allow_hf32: bool = False


config = Config()
matmul = Matmul()
