"""What vllm-ascend does to weights after loading, such that a later sync would write into them wrongly."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ....errors import EngineError
from ..transport.tensors import Weight
from . import layout

if TYPE_CHECKING:
    import torch

# vLLM multiplies with views of MLA's kv_b_proj in decoding, vllm-ascend with copies of it: attention/mla_v1.py, and
# sfa_v1.py, where they have other names in v0.11.0.
_SOURCE = "kv_b_proj"
_COPIES = (("W_UV", "W_UK_T"), ("kv_b_proj_w_v", "kv_b_proj_w_k"))
# The engine V0, up to 0.9.1 (attention/attention.py), makes its copies once, when they are None: 0.7.3 in the forward,
# 0.9.1 after loading.
_MADE_ONCE = ("w_vc", "w_kc")
_EXPERTS = ("w13_weight", "w2_weight")
_REFRESHES = "_verl_npu_refreshes_copies"


def lay_out_experts_for_loading(model: torch.nn.Module) -> None:
    """Lay experts out as vLLM's loader expects them, if vllm-ascend has transposed them; it does so again afterwards.

    For callers that process the weights after the load. An engine that slept has this done as it wakes up, one that
    did not sleep never: its experts would be transposed a second time, and the loader fails on them before that.
    Source: vllm-ascend from v0.13.0 on, `AscendUnquantizedFusedMoEMethod.process_weights_after_loading` and
    `NPUWorker.wake_up`. In v0.11.0 processing keeps count in `transpose`, and the loader transposes.
    """
    import torch

    for _, layer in model.named_modules():
        if _is_processed_anew(layer) and _are_transposed(layer):
            for name in _EXPERTS:
                held = getattr(layer, name)
                turned = torch.nn.Parameter(held.data.transpose(1, 2), requires_grad=False)
                vars(turned).update(vars(held))
                setattr(layer, name, turned)


def _is_processed_anew(layer: object) -> bool:
    """Whether vllm-ascend transposes a layer's experts each time it processes them."""
    return getattr(getattr(layer, "quant_method", None), "transpose", None) is None


def refuse_square_experts(model: torch.nn.Module, laid_out_before_load: bool = False) -> None:
    """Raise EngineError for experts whose weights are transposed and square: vllm-ascend would load new weights into
    them untransposed.

    Source: vllm-ascend, `AscendUnquantizedFusedMoEMethod`. In v0.11.0 (`ops/common_fused_moe.py`) its `transpose` is
    False once it has transposed `w13_weight` to (experts, hidden, 2 * intermediate) and `w2_weight` to (experts,
    intermediate, hidden), and the loader decides by the shape whether a new weight must be transposed too. From
    v0.13.0 on (`ops/fused_moe/fused_moe.py`) it transposes whenever it processes, has no `transpose`, and only waking
    up transposes back: the loader is vLLM's own, which fails by itself on transposed experts that are not square;
    those that `lay_out_experts_for_loading` is called for before the load are right.
    """
    for name, layer in model.named_modules():
        if not _are_transposed(layer) or (laid_out_before_load and _is_processed_anew(layer)):
            continue
        for weight in _EXPERTS:
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


def _are_transposed(layer: object) -> bool:
    """Whether a layer's experts are as vllm-ascend lays them out, and not as vLLM's loader expects them."""
    quant_method = getattr(layer, "quant_method", None)
    if layout.UNQUANTIZED not in layout.kinds_of(quant_method):
        return False
    flag = getattr(quant_method, "transpose", None)
    if flag is not None:
        return flag is False
    if not all(hasattr(layer, name) for name in _EXPERTS):
        return False
    (_, rows, columns), (_, inner, outer) = (tuple(getattr(layer, name).shape) for name in _EXPERTS)
    # One of them may be square, but never both.
    return (rows, columns) == (outer, 2 * inner)


def refuse_disposed_projections(model: torch.nn.Module) -> None:
    """Raise EngineError if vllm-ascend has disposed of a projection that new weights are to be loaded into.

    Source: `attention/sfa_v1.py` from v0.13.0 on, `process_weights_after_loading`: sparse attention (DeepSeek-V3.2,
    GLM-5) frees kv_b_proj once it has made its copies, from which it cannot be made again.
    """
    for name, module in model.named_modules():
        impl = getattr(module, "impl", None)
        weight = getattr(getattr(impl, _SOURCE, None), "weight", None)
        if weight is not None and weight.numel() == 0 and _names_of_copies(impl) is not None:
            raise EngineError(
                subject=f"{_SOURCE} of {name}",
                expected="a weight into which new ones can be loaded",
                found="none: vllm-ascend's sparse attention has freed it after loading",
                fix="use a rollout engine or a version of vllm-ascend that keeps it (0.11 does)",
            )


def refresh_copies_on_load(model: Any) -> None:
    """Have `model.load_weights` refresh MLA's copies of kv_b_proj in place: captured graphs read them there. Whoever
    else processes the weights afterwards leaves them there too.

    Source: vllm-ascend up to 0.13.0 makes them anew each time it processes weights (vllm-ascend#7473), which verl does
    after each sync from v0.7.1 on. The copies of the engine V0, which captures no graphs of MLA, are made anew.
    """
    if getattr(model, _REFRESHES, False):
        return
    impls = [getattr(module, "impl", None) for _, module in model.named_modules()]
    copying = [impl for impl in impls if impl is not None and _copies(impl)]
    once = [impl for impl in impls if impl is not None and all(hasattr(impl, name) for name in (_SOURCE, *_MADE_ONCE))]
    if not copying and not once:
        return
    for impl in copying:
        _keep_in_place(impl)
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
            for impl in once:
                _make_anew(impl)
        return loaded

    model.load_weights = load_weights
    setattr(model, _REFRESHES, True)


def is_copy(name: str) -> bool:
    """Tell whether an attribute, `Class.name`, is a copy of weights that is made anew after each sync."""
    attribute = name.partition(" ")[0].rpartition(".")[2]
    return attribute in {*_MADE_ONCE, *(each for names in _COPIES for each in names)}


def _copies(impl: object) -> bool:
    names = _names_of_copies(impl)
    if names is None:
        return False
    source = getattr(impl, _SOURCE).weight
    return any(
        getattr(impl, name).untyped_storage().data_ptr() != source.untyped_storage().data_ptr() for name in names
    )


def _names_of_copies(impl: object) -> tuple[str, ...] | None:
    if not all(hasattr(impl, name) for name in (_SOURCE, "process_weights_after_loading")):
        return None
    return next((names for names in _COPIES if all(hasattr(impl, name) for name in names)), None)


def _refresh(impl: Any) -> None:
    names = _names_of_copies(impl) or ()
    impl.process_weights_after_loading(getattr(impl, names[0]).dtype)


def _keep_in_place(impl: Any) -> None:
    """Have copies that are made anew copied to where the present ones lie, if they look like them."""
    import torch

    original = impl.process_weights_after_loading

    @functools.wraps(original)
    def process_weights_after_loading(*args: object, **options: object) -> None:
        held = {name: getattr(impl, name) for name in _names_of_copies(impl) or ()}
        with torch.no_grad():
            original(*args, **options)
            for name, tensor in held.items():
                made = getattr(impl, name)
                if made is not tensor and (made.shape, made.dtype) == (tensor.shape, tensor.dtype):
                    tensor.copy_(made)
                    setattr(impl, name, tensor)

    impl.process_weights_after_loading = process_weights_after_loading


def _make_anew(impl: object) -> None:
    for name in _MADE_ONCE:
        setattr(impl, name, None)
    process = getattr(impl, "process_weights_after_loading", None)
    if process is not None:
        process(getattr(impl, _SOURCE).weight.dtype)
