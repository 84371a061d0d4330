"""What an engine's model holds, compared with what was sent to it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from .... import environment
from ....errors import EngineError
from ..settings import Check
from ..transport.checksum import same_bits

if TYPE_CHECKING:
    import torch

__all__ = ["Model", "compare"]

SHOWN = 5

# The parameters into which vLLM fuses a layer's experts, with the projections of one expert in each.
_EXPERTS = {"w13_weight": ("gate_proj", "up_proj"), "w2_weight": ("down_proj",)}


class Model(Protocol):
    """A model with parameters, as torch's modules are."""

    def named_parameters(self) -> Iterable[tuple[str, torch.Tensor]]:
        """Return the parameters with their names."""
        ...


def compare(model: Model, sent: Mapping[str, torch.Tensor]) -> None:
    """Compare every parameter of the model with what was sent, bit for bit; parts of fused ones each on their own.

    Raises EngineError with the names of those that differ, or that cannot be compared here (sharded ones).
    """
    packed = getattr(model, "packed_modules_mapping", {})
    problems: list[str] = []
    left = set(sent)
    for name, parameter in model.named_parameters():
        held = parameter.detach().cpu()
        parts = _parts(name, sent, packed)
        if not parts and held.dim() == 3:
            parts, held = _experts(name, sent), held.flatten(0, 1)
        if not _comparable(name, parts, held, sent):
            problems.append(f"{name}: not comparable with what was sent")
            continue
        left.difference_update(parts)
        problems += [
            f"{part}: the engine holds other values in {name}"
            for part, values in _slices(parts, held, sent)
            if not same_bits(values, sent[part].to(held.dtype))
        ]
    problems += [f"{name}: sent, and no parameter of the engine" for name in sorted(left) if not _tied(name, sent)]
    if problems:
        more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise EngineError(
            subject="rollout engine",
            expected="the weights that were sent",
            found=f"differences ({len(problems)}): {'; '.join(problems[:SHOWN])}{more}",
            fix="do not train with this rollout; a model that is sharded or fused in another way cannot be compared "
            f"like this: use {environment.WEIGHT_SYNC_CHECK.name}={Check.CHECKSUMS.value}",
        )


def _parts(name: str, sent: Mapping[str, torch.Tensor], packed: Mapping[str, Sequence[str]]) -> list[str]:
    if name in sent:
        return [name]
    for fused, modules in packed.items():
        if f".{fused}." in name:
            parts = [name.replace(f".{fused}.", f".{module}.") for module in modules]
            return parts if all(part in sent for part in parts) else []
    return []


def _experts(name: str, sent: Mapping[str, torch.Tensor]) -> list[str]:
    """The parts of one of the two parameters, (experts, rows, columns), into which a layer's experts are fused."""
    layer, _, fused = name.rpartition(".")
    projections = _EXPERTS.get(fused, ())
    parts: list[str] = []
    for expert in itertools.count():
        of_expert = [f"{layer}.{expert}.{projection}.weight" for projection in projections]
        if not of_expert or not all(part in sent for part in of_expert):
            return parts
        parts += of_expert
    return parts


def _comparable(name: str, parts: Sequence[str], held: torch.Tensor, sent: Mapping[str, torch.Tensor]) -> bool:
    rows = sum(_rows(sent[part]) for part in parts)
    # A vocabulary is padded; everything else that is longer or shorter is sharded.
    padded = list(parts) == [name] and held.dim() == 2 and held.shape[0] >= rows
    return bool(parts) and (padded or _rows(held) == rows)


def _slices(
    parts: Sequence[str], held: torch.Tensor, sent: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    begin = 0
    for part in parts:
        end = begin + _rows(sent[part])
        yield part, held[begin:end] if held.dim() else held
        begin = end


def _rows(tensor: torch.Tensor) -> int:
    return int(tensor.shape[0]) if tensor.dim() else 1


def _tied(name: str, sent: Mapping[str, torch.Tensor]) -> bool:
    return any(same_bits(sent[name], other) for key, other in sent.items() if key != name)
