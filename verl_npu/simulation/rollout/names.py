"""Which weight of the engine's model a trainer's weight is: their names differ with transformers and the trainer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

__all__ = ["Names", "Place"]

# What vLLM maps as well: the checkpoints of image-text models have other names than transformers' modules.
_PREFIXES = (
    ("visual.", "model.visual."),
    ("language_model.model.", "model.language_model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
    ("model.", "model.language_model."),
)
_EXPERT = re.compile(r"^(?P<block>.+\.experts)\.(?P<expert>\d+)\.(?P<half>gate_proj|up_proj|down_proj)\.weight$")
_LAYER = re.compile(r"^(?:model\.|language_model\.)*layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a weight goes."""

    target: torch.Tensor
    """The model's parameter or buffer."""
    view: torch.Tensor
    """The part of it that the weight is."""
    part: str
    """Which part: empty for the whole."""


class Names:
    """The weights of a model, found by any name that they are known under."""

    def __init__(self, own: Mapping[str, torch.Tensor], renamed: Mapping[str, str], ignored: list[str], layers: int):
        """Take the model's weights, its class's patterns of checkpoint names, those to ignore, and its layers."""
        self._own = own
        self._renamed = renamed
        self._ignored = [re.compile(pattern) for pattern in ignored]
        self._layers = layers

    def find(self, name: str) -> Place | None:
        """The place of a weight; None if the model has none of that name."""
        for known in self._alike(name.replace(".base_layer.", ".")):
            if known in self._own:
                return Place(self._own[known], self._own[known], "")
            place = self._of_experts(known)
            if place is not None:
                return place
        return None

    def superfluous(self, name: str) -> bool:
        """Whether engines pass the weight over: those of layers for multi-token prediction, and computed buffers."""
        layer = _LAYER.match(name)
        return (
            (layer is not None and int(layer[1]) >= self._layers)
            or name.startswith("mtp.")
            or "rotary_emb.inv_freq" in name
            or any(pattern.search(name) for pattern in self._ignored)
        )

    def _alike(self, name: str) -> Iterator[str]:
        yield name
        for pattern, replacement in self._renamed.items():
            changed, count = re.subn(pattern, replacement, name)
            if count:
                yield changed
        for prefix, replacement in _PREFIXES:
            if name.startswith(prefix):
                yield replacement + name[len(prefix) :]

    def _of_experts(self, name: str) -> Place | None:
        # Since transformers 5, and in some models before, all experts of a layer are one parameter.
        match = _EXPERT.match(name)
        if match is None:
            return None
        block, expert, half = match["block"], int(match["expert"]), match["half"]
        down = self._own.get(f"{block}.down_proj")
        both = self._own.get(f"{block}.gate_up_proj")
        if down is None or both is None or expert >= down.shape[0]:
            return None
        # Of an expert (out, in), or in some models (in, out).
        transposed = down.shape[1] * 2 == both.shape[2]
        if half == "down_proj":
            view = down[expert]
            target = down
        else:
            width = both.shape[2 if transposed else 1] // 2
            view = both[expert].narrow(1 if transposed else 0, 0 if half == "gate_proj" else width, width)
            target = both
        return Place(target, view.t() if transposed else view, f"{expert}.{half}")
