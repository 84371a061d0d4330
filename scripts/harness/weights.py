"""Whether training moved the weights: the saved model against the one that it started from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from harness.errors import RunFailed


@dataclass(frozen=True)
class Movement:
    """How far the weights went."""

    tensors: int
    moved: int
    largest: float

    @property
    def all_moved(self) -> bool:
        return self.tensors > 0 and self.moved == self.tensors


def _load(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found.update(load_file(path))
    if not found:
        raise RunFailed(f"weights: expected safetensors in {folder}, found none")
    return found


def compare(before: Path, after: Path) -> Movement:
    """Compare two saved models; raises RunFailed when they do not match by name and shape or are not finite."""
    old, new = _load(before), _load(after)
    if old.keys() != new.keys():
        raise RunFailed(f"weights: the saved model has other tensors: {sorted(old.keys() ^ new.keys())[:3]}")
    moved, largest = 0, 0.0
    for name, was in old.items():
        now = new[name].to(torch.float32)
        if now.shape != was.shape or not bool(torch.isfinite(now).all()):
            raise RunFailed(f"weights: {name}: expected finite numbers of shape {tuple(was.shape)}")
        distance = float((now - was.to(torch.float32)).abs().max())
        moved += distance > 0
        largest = max(largest, distance)
    return Movement(tensors=len(old), moved=moved, largest=largest)
