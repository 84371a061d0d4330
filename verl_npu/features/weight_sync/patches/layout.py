"""Weights that vllm-ascend has laid out anew after loading: what a later sync writes into them must still be right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ....registry.source.probe import Defines, Never
from ..errors import EngineError
from ..feature import weight_sync

__all__ = ["follow_copies", "refuse_square_experts"]

_LOADER = "verl.utils.vllm.patch:patch_vllm_moe_model_weight_loader"
# What MLA's decode multiplies with: vLLM has views of kv_b_proj's weight there, vllm-ascend copies.
_SOURCE = "kv_b_proj"
_COPIES = ("W_UV", "W_UK_T")
_FOLLOWS = "_verl_npu_follows_copies"


# All that syncs into a vLLM model, here or upstream, calls this target first, at all pins.
@weight_sync.wrap(
    _LOADER,
    why="vllm-ascend changes weights after loading. Of MLA's kv_b_proj it keeps copies, which a sync leaves as they "
    "were; and it tells by its shape whether an expert's weight is transposed, which says nothing of a square one",
    how="the copies are made anew, in place, whenever kv_b_proj is loaded; transposed square experts are an error "
    "before anything is loaded",
    link="none: nobody seems to have reported it; one recipe of verl's, r1_ascend, makes the copies anew by itself",
    retired_by=Never("it is vllm-ascend's doing, and which version is installed is not seen from verl's source"),
    requires=Defines(_LOADER),
)
def loadable(original: Callable[..., Any], model: Any) -> Any:
    """Prepare a vLLM model for a sync. Raises EngineError where one would garble it."""
    refuse_square_experts(model)
    follow_copies(model)
    return original(model)


def refuse_square_experts(model: Any) -> None:
    """Raise EngineError for experts whose weights are transposed and square: vllm-ascend would load the next ones
    as they are.

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
                    f"{name}.{weight}: vllm-ascend has transposed it, and as its experts are square, {shape[1:]}, it "
                    "would load new weights into it untransposed, without an error. Choose another "
                    "rollout.tensor_model_parallel_size, which changes the shape, or another rollout engine"
                )


def follow_copies(model: Any) -> None:
    """Have `model.load_weights` make MLA's copies of kv_b_proj anew, in place: captured graphs read them there."""
    if getattr(model, _FOLLOWS, False):
        return
    copying = [impl for impl in (getattr(module, "impl", None) for module in model.modules()) if _copies(impl)]
    if not copying:
        return
    original = model.load_weights

    def load_weights(weights: Iterable[tuple[str, Any]], *args: Any, **kwargs: Any) -> Any:
        seen: list[str] = []

        def watched() -> Iterator[tuple[str, Any]]:
            for name, weight in weights:
                if _SOURCE in name:
                    seen.append(name)
                yield name, weight

        loaded = original(watched(), *args, **kwargs)
        if seen:
            for impl in copying:
                _copy_anew(impl)
        return loaded

    model.load_weights = load_weights
    setattr(model, _FOLLOWS, True)


def _copies(impl: Any) -> bool:
    if not all(hasattr(impl, name) for name in (*_COPIES, _SOURCE, "process_weights_after_loading")):
        return False
    source = getattr(impl, _SOURCE).weight
    return any(
        getattr(impl, name).untyped_storage().data_ptr() != source.untyped_storage().data_ptr() for name in _COPIES
    )


def _copy_anew(impl: Any) -> None:
    import torch

    held = {name: getattr(impl, name) for name in _COPIES}
    with torch.no_grad():
        impl.process_weights_after_loading(held[_COPIES[0]].dtype)
        for name, tensor in held.items():
            made = getattr(impl, name)
            if made is not tensor:
                tensor.copy_(made)
                setattr(impl, name, tensor)
