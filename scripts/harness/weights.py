"""Checks that training changed the weights, by comparing the saved model with the initial one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from harness.errors import RunFailed


@dataclass(frozen=True)
class Movement:
    """The extent to which training changed the weights."""

    tensors: int
    moved: int
    largest: float

    @property
    def all_moved(self) -> bool:
        return self.tensors > 0 and self.moved == self.tensors


_ADAPTER = ".lora_"
_WRAPPING = re.compile(r"^base_model\.model\.|\.base_layer(?=\.)")


def _adapter(old: dict[str, torch.Tensor], new: dict[str, torch.Tensor]) -> Movement:
    """Return how far the second factors of the adapters moved from zero, their initial value."""
    base = {_WRAPPING.sub("", name): tensor for name, tensor in new.items() if _ADAPTER not in name}
    if old.keys() != base.keys():
        raise RunFailed(
            f"weights: the saved model and the original model have different tensors; only one of the "
            f"two has {sorted(old.keys() ^ base.keys())[:3]}"
        )
    for name, was in old.items():
        if not torch.equal(base[name].to(was.dtype), was):
            raise RunFailed(f"weights: {name}: this base weight changed, but LoRA trains only the adapter")
    seconds = {name: tensor.to(torch.float32) for name, tensor in new.items() if ".lora_B" in name}
    if not all(bool(torch.isfinite(tensor).all()) for tensor in seconds.values()):
        raise RunFailed("weights: expected only finite numbers in the adapter; found NaN or infinity")
    distances = [float(tensor.abs().max()) for tensor in seconds.values()]
    moved = sum(distance > 0 for distance in distances)
    return Movement(tensors=len(seconds), moved=moved, largest=max(distances, default=0.0))


def _load(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found.update(load_file(path))
    if not found:
        raise RunFailed(f"weights: expected safetensors in {folder}; found none")
    return found


def compare(before: Path, after: Path, still: str = "$^") -> Movement:
    """Compare two saved models. Raise RunFailed if the names or the shapes of their weights differ, or if a number is
    not finite.

    The result counts the compared tensors. Tensors whose names match the pattern `still` may stay unchanged, and are
    not counted. A model trained with LoRA is saved with peft's names. For such a model, only the adapter's tensors are
    counted, and RunFailed is raised if a base weight changed.
    """
    old, new = _load(before), _load(after)
    if any(_ADAPTER in name for name in new):
        return _adapter(old, new)
    if old.keys() != new.keys():
        raise RunFailed(
            f"weights: the saved model and the original model have different tensors; only one of the "
            f"two has {sorted(old.keys() ^ new.keys())[:3]}"
        )
    moved, largest = 0, 0.0
    for name, was in old.items():
        now = new[name].to(torch.float32)
        if now.shape != was.shape or not bool(torch.isfinite(now).all()):
            raise RunFailed(f"weights: {name}: expected a tensor of shape {tuple(was.shape)} with only finite numbers")
        if re.search(still, name):
            continue
        distance = float((now - was.to(torch.float32)).abs().max())
        moved += distance > 0
        largest = max(largest, distance)
    return Movement(tensors=sum(not re.search(still, name) for name in old), moved=moved, largest=largest)
