"""What vllm-ascend does to weights after loading, such that a later sync would write into them wrongly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from ....errors import EngineError
from ..transport.drawing import Weight

if TYPE_CHECKING:
    import torch

__all__ = ["Model", "refresh_copies_on_load", "refuse_square_experts"]

# vLLM multiplies with views of MLA's kv_b_proj in decoding, vllm-ascend with copies of it.
_SOURCE = "kv_b_proj"
_COPIES = ("W_UV", "W_UK_T")
_REFRESHES = "_verl_npu_refreshes_copies"


class Model(Protocol):
    """A model of vLLM's."""

    load_weights: Callable[..., object]

    def modules(self) -> Iterable[object]:
        """Return its modules."""
        ...

    def named_modules(self) -> Iterable[tuple[str, object]]:
        """Return its modules with their names."""
        ...


class Attention(Protocol):
    """MLA as vllm-ascend implements it, with the tensors that `_SOURCE` and `_COPIES` name."""

    def process_weights_after_loading(self, dtype: torch.dtype) -> None:
        """Make the copies."""
        ...


def refuse_square_experts(model: Model) -> None:
    """Raise EngineError for experts whose weights are transposed and square: vllm-ascend would load new weights into
    them untransposed.

    Source: vllm-ascend v0.11.0, `ops/common_fused_moe.py`: `AscendUnquantizedFusedMoEMethod`, whose `transpose` is
    False once it has transposed `w13_weight` to (experts, hidden, 2 * intermediate) and `w2_weight` to (experts,
    intermediate, hidden), and `AscendFusedMoE.transpose_weight`.
    """
    for name, layer in model.named_modules():
        if getattr(getattr(layer, "quant_method", None), "transpose", None) is not False:
            continue
        for weight in ("w13_weight", "w2_weight"):
            shape = tuple(getattr(layer, weight).shape)
            if shape[1] == shape[2]:
                raise EngineError(
                    subject=f"{name}.{weight}",
                    expected="experts that are not square",
                    found=f"transposed square experts, {shape[1:]}, into which vllm-ascend would load new weights "
                    "untransposed, without an error",
                    fix="choose another rollout.tensor_model_parallel_size, which changes the shape, or another "
                    "rollout engine",
                )


def refresh_copies_on_load(model: Model) -> None:
    """Have `model.load_weights` refresh MLA's copies of kv_b_proj in place: captured graphs read them there."""
    if getattr(model, _REFRESHES, False):
        return
    impls = [getattr(module, "impl", None) for module in model.modules()]
    copying: list[Attention] = [impl for impl in impls if impl is not None and _copies(impl)]
    if not copying:
        return
    original = model.load_weights

    def load_weights(weights: Iterable[Weight], *args: object, **kwargs: object) -> object:
        sources: list[str] = []

        def watched() -> Iterator[Weight]:
            for name, weight in weights:
                if _SOURCE in name:
                    sources.append(name)
                yield name, weight

        loaded = original(watched(), *args, **kwargs)
        if sources:
            for impl in copying:
                _refresh(impl)
        return loaded

    model.load_weights = load_weights
    setattr(model, _REFRESHES, True)


def _copies(impl: object) -> bool:
    if not all(hasattr(impl, name) for name in (*_COPIES, _SOURCE, "process_weights_after_loading")):
        return False
    source = getattr(impl, _SOURCE).weight
    return any(
        getattr(impl, name).untyped_storage().data_ptr() != source.untyped_storage().data_ptr() for name in _COPIES
    )


def _refresh(impl: Attention) -> None:
    import torch

    held = {name: getattr(impl, name) for name in _COPIES}
    with torch.no_grad():
        impl.process_weights_after_loading(held[_COPIES[0]].dtype)
        for name, tensor in held.items():
            made = getattr(impl, name)
            if made is not tensor:
                tensor.copy_(made)
                setattr(impl, name, tensor)
