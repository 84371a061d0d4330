"""Receives a weight sync into a model. Every weight must match the model, and all weights must be received before the
model generates."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypedDict, cast

import torch

from verl_npu.errors import RolloutError

_LORA = re.compile(r"^(?P<module>.+)\.lora_(?P<half>[AB])(?:\.default)?\.weight$")


class Adapter(TypedDict, total=False):
    """The settings in a LoRA adapter's configuration that this module uses."""

    r: int
    lora_alpha: float
    use_rslora: bool
    rank_pattern: dict[str, int]
    alpha_pattern: dict[str, float]


class _Settings(Protocol):
    num_hidden_layers: int


class Weights:
    """The weights of a model. If the model is on the `meta` device, a weight sync is only checked, and nothing is
    copied."""

    def __init__(self, model: torch.nn.Module, settings: _Settings) -> None:
        """`settings` is the part of the configuration that contains the language model's number of layers."""
        # keep_vars returns the parameters themselves, so that tied ones count once.
        self._own: dict[str, torch.Tensor] = dict(model.state_dict(keep_vars=True))
        self._names = Names(
            self._own,
            getattr(model, "_checkpoint_conversion_mapping", None) or {},
            list(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or []),
            settings.num_hidden_layers,
        )
        self._arrived: dict[int, dict[str, int]] = {}
        # By module: the weight without the adapter.
        self._base: dict[str, torch.Tensor] = {}
        self._whole = False
        self._ready = False

    @property
    def ready(self) -> bool:
        """Whether all weights have been received."""
        return self._ready

    def release(self) -> None:
        """Release the weights until the next weight sync.

        If only an adapter is trained, the next sync needs to contain only the adapter, because verl sends the base
        weights only once.
        """
        self._ready = False

    def take(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy some of the weights. Raises RolloutError if a weight is not in the model or has an unexpected shape."""
        self._ready = False
        self._whole = False
        self._base.clear()
        for name, value in weights:
            place = self._place(name)
            if place is None:
                continue
            _check(name, place.view, value)
            if not place.view.is_meta:
                place.view.detach().copy_(value.detach())
            self._arrived.setdefault(id(place.target), {})[place.part] = place.view.numel()

    def complete(self, adapter: Adapter | None = None, parts: Iterable[tuple[str, torch.Tensor]] = ()) -> None:
        """Finish a weight sync of all weights or of an adapter. Raises RolloutError if a weight is missing."""
        if adapter is not None:
            self.adapt(parts, adapter)
            return
        missing = sorted(
            name
            for name, value in self._own.items()
            if sum(self._arrived.get(id(value), {}).values()) < value.numel() or id(value) not in self._arrived
        )
        self._arrived.clear()
        if missing:
            raise RolloutError(
                subject="weights for the virtual rollout engine",
                expected=f"all {len(self._own)} weights of its model",
                found=f"{len(missing)} missing, the first of them {missing[0]}",
                fix="send every weight before you call `complete`",
            )
        self._whole = self._ready = True

    def adapt(self, weights: Iterable[tuple[str, torch.Tensor]], adapter: Adapter) -> None:
        """Add a LoRA adapter to the base weights. It replaces an earlier adapter. Raises RolloutError if there are no
        base weights, or if the adapter does not match them."""
        halves: dict[str, dict[str, torch.Tensor]] = {}
        others: list[tuple[str, torch.Tensor]] = []
        for name, value in weights:
            match = _LORA.match(name)
            if match is None:
                others.append((name.removeprefix("base_model.model."), value))
            else:
                halves.setdefault(match["module"].removeprefix("base_model.model."), {})[match["half"]] = value
        if not self._whole:
            raise RolloutError(
                subject="a LoRA adapter for the virtual rollout engine",
                expected="base weights to arrive before the adapter",
                found="no base weights since the engine started or last released its weights",
                fix="send the base weights first, or set actor_rollout_ref.rollout.load_format=safetensors",
            )
        for name, value in others:
            place = self._known(name)
            _check(name, place.view, value)
            if not place.view.is_meta:
                place.view.detach().copy_(value.detach())
        for module, pair in halves.items():
            self._add(module, pair, adapter)
        self._ready = True

    def _add(self, module: str, pair: Mapping[str, torch.Tensor], adapter: Adapter) -> None:
        if set(pair) != {"A", "B"}:
            raise RolloutError(
                subject=f"the LoRA adapter of {module}",
                expected="lora_A and lora_B",
                found=f"only lora_{''.join(pair)}",
                fix="send both parts of the adapter",
            )
        place = self._known(f"{module}.weight")
        if place.view.is_meta:
            return
        first, second = (pair[half].detach().to(place.view.device, torch.float32) for half in "AB")
        _check(f"{module}.weight", place.view, second @ first)
        base = self._base.setdefault(module, place.view.detach().clone())
        place.view.detach().copy_(base.float() + _scale(module, first.shape[0], adapter) * (second @ first))

    def _known(self, name: str) -> Destination:
        place = self._place(name)
        if place is None:
            raise _unknown(name)
        return place

    def _place(self, name: str) -> Destination | None:
        place = self._names.find(name)
        if place is None and not self._names.superfluous(name):
            raise _unknown(name)
        return place


def _scale(module: str, rank: int, adapter: Adapter) -> float:
    alphas = adapter.get("alpha_pattern") or {}
    found = [alpha for pattern, alpha in alphas.items() if re.search(rf"(^|\.){pattern}$", module)]
    alpha = found[0] if found else cast("float", adapter.get("lora_alpha", rank))
    return alpha / (math.sqrt(rank) if adapter.get("use_rslora") else rank)


def _unknown(name: str) -> RolloutError:
    return RolloutError(
        subject="weights for the virtual rollout engine",
        expected="only weights of the engine's model",
        found=f"the weight {name}, which this model does not have",
        fix="start the trainer and the engine from the same model",
    )


def _check(name: str, own: torch.Tensor, value: torch.Tensor) -> None:
    if own.shape != value.shape:
        raise RolloutError(
            subject=f"the weight {name} for the virtual rollout engine",
            expected=f"the shape {tuple(own.shape)}",
            found=str(tuple(value.shape)),
            fix="start the trainer and the engine from the same model",
        )


# The names of weights depend on the trainer and on the release of transformers.

# Checkpoints of image-text models have other names than transformers' modules; vLLM maps them too.
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
class Destination:
    """The place in the model that a weight is copied to."""

    target: torch.Tensor
    """The model's parameter or buffer."""
    view: torch.Tensor
    """The part of `target` that the weight fills."""
    part: str
    """The name of this part of `target`. Empty if the weight fills all of it."""


class Names:
    """Finds a model's weights by any of their possible names."""

    def __init__(self, own: Mapping[str, torch.Tensor], renamed: Mapping[str, str], ignored: list[str], layers: int):
        """`renamed` and `ignored` are patterns of checkpoint names from the model's class. `layers` is the model's
        number of layers."""
        self._own = own
        self._renamed = renamed
        self._ignored = [re.compile(pattern) for pattern in ignored]
        self._layers = layers

    def find(self, name: str) -> Destination | None:
        """Return the destination of a weight, or None if the model has no weight of this name."""
        for known in self._alike(name.replace(".base_layer.", ".")):
            if known in self._own:
                return Destination(self._own[known], self._own[known], "")
            place = self._of_experts(known)
            if place is not None:
                return place
        return None

    def superfluous(self, name: str) -> bool:
        """Return whether engines ignore this weight. They ignore computed buffers and the weights of layers for
        multi-token prediction."""
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

    def _of_experts(self, name: str) -> Destination | None:
        # All experts of a layer are one parameter since transformers 5, and in some models earlier.
        match = _EXPERT.match(name)
        if match is None:
            return None
        block, expert, half = match["block"], int(match["expert"]), match["half"]
        down = self._own.get(f"{block}.down_proj")
        both = self._own.get(f"{block}.gate_up_proj")
        if down is None or both is None or expert >= down.shape[0]:
            return None
        # An expert's weight is [out, in], or in some models [in, out].
        transposed = down.shape[1] * 2 == both.shape[2]
        if half == "down_proj":
            view = down[expert]
            target = down
        else:
            width = both.shape[2 if transposed else 1] // 2
            view = both[expert].narrow(1 if transposed else 0, 0 if half == "gate_proj" else width, width)
            target = both
        return Destination(target, view.t() if transposed else view, f"{expert}.{half}")
