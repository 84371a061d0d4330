"""Rollout engines as the takers of weights: closed while they hold half of a sync, read back to be compared."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import EngineError

__all__ = ["SGLangEngine", "VLLMEngine", "refuse_nz"]

Weights = Sequence[tuple[str, Any]]
NZ = "VLLM_ASCEND_ENABLE_NZ"
EXPERTS = {"w13_weight": ("gate_proj", "up_proj"), "w2_weight": ("down_proj",)}


def refuse_nz() -> None:
    """Raise EngineError where vllm-ascend may have laid weights out in FRACTAL_NZ: a copy into them garbles them."""
    if "vllm_ascend" in sys.modules and os.environ.get(NZ, "1") != "0":
        raise EngineError(
            f"{NZ}={os.environ.get(NZ, '(unset: 1)')}: vllm-ascend may hold weights in the layout FRACTAL_NZ, and new "
            f"weights written into that are garbled without an error. Set {NZ}=0 in the environment of the job"
        )


class VLLMEngine:
    """The model in a vLLM worker of this process."""

    def __init__(self, model: Any) -> None:
        refuse_nz()
        self._model = model

    def load(self, weights: Weights) -> None:
        """Give them to the model's own loader, which fuses and shards; forward is refused from now on."""
        self._close()
        self._model.load_weights(list(weights))

    def open(self) -> None:
        """Allow forward again."""
        hook = self._model.__dict__.pop("_verl_npu_closed", None)
        if hook is not None:
            hook.remove()

    def compare(self, sent: Mapping[str, Any]) -> None:
        """Hold every parameter of the model against what was sent; parts of fused ones each on their own.

        Raises EngineError with the names of those that differ, or that cannot be told apart here (sharded ones).
        """
        problems = []
        left = set(sent)
        for name, parameter in self._model.named_parameters():
            held = parameter.detach().cpu()
            parts = _parts(name, sent, getattr(self._model, "packed_modules_mapping", {}))
            if not parts and held.dim() == 3:
                parts, held = _experts(name, sent), held.flatten(0, 1)
            rows = sum(sent[part].shape[0] if sent[part].dim() else 1 for part in parts)
            # A vocabulary is padded; everything else that is longer or shorter is sharded.
            padded = parts == [name] and held.dim() == 2 and held.shape[0] >= rows
            if not parts or not (padded or (held.shape[0] if held.dim() else 1) == rows):
                problems.append(f"{name}: not comparable with what was sent")
                continue
            begin = 0
            for part in parts:
                expected = sent[part].to(held.dtype)
                length = expected.shape[0] if expected.dim() else 1
                found = held[begin : begin + length] if held.dim() else held
                begin += length
                left.discard(part)
                if not _same_bits(found, expected):
                    problems.append(f"{part}: the engine holds other values in {name}")
        problems += [f"{name}: sent, and no parameter of the engine" for name in sorted(left) if not _tied(name, sent)]
        if problems:
            more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
            raise EngineError(f"the engine does not hold what was sent: {'; '.join(problems[:5])}{more}")

    def _close(self) -> None:
        if "_verl_npu_closed" not in self._model.__dict__:
            self._model.__dict__["_verl_npu_closed"] = self._model.register_forward_pre_hook(_refuse)


class SGLangEngine:
    """An SGLang engine in another process, which `update` gives weights to; None on ranks without one.

    It has no forward of ours to close: what keeps a half-loaded engine from use is the error that ends the step.
    """

    def __init__(self, engine: Any, update: Any) -> None:
        self._engine = engine
        self._update = update

    def load(self, weights: Weights) -> None:
        """Hand copies over: the engine reads them after this call has returned."""
        if self._engine is not None:
            self._update(self._engine, [(name, tensor.clone()) for name, tensor in weights])

    def open(self) -> None:
        """Nothing was closed."""

    def compare(self, sent: Mapping[str, Any]) -> None:
        """Raises EngineError: SGLang's parameters cannot be read from here."""
        raise EngineError("VERL_NPU_WEIGHT_SYNC_CHECK=engine: an SGLang engine cannot be read back; use checksums")


def _refuse(module: Any, arguments: Any) -> None:
    raise EngineError(
        f"{type(module).__name__}: the last weight sync did not come to its end, so this model holds old and new "
        "weights mixed and is not used; see that sync's own error"
    )


def _parts(name: str, sent: Mapping[str, Any], packed: Mapping[str, Sequence[str]]) -> list[str]:
    if name in sent:
        return [name]
    for fused, modules in packed.items():
        if f".{fused}." in name:
            parts = [name.replace(f".{fused}.", f".{module}.") for module in modules]
            return parts if all(part in sent for part in parts) else []
    return []


def _experts(name: str, sent: Mapping[str, Any]) -> list[str]:
    """The parts of one of the two parameters, (experts, rows, columns), that a layer's experts are fused into."""
    layer, _, fused = name.rpartition(".")
    projections = EXPERTS.get(fused, ())
    parts: list[str] = []
    for expert in itertools.count():
        found = [f"{layer}.{expert}.{projection}.weight" for projection in projections]
        if not found or not all(part in sent for part in found):
            return parts
        parts += found
    return parts


def _tied(name: str, sent: Mapping[str, Any]) -> bool:
    return any(_same_bits(sent[name], other) for key, other in sent.items() if key != name)


def _same_bits(found: Any, expected: Any) -> bool:
    import torch

    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    left, right = (t.contiguous().reshape(-1).view(torch.uint8) for t in (found, expected))
    return bool(torch.equal(left, right))
