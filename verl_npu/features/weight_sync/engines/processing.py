"""Corrections to vllm-ascend's processing of loaded weights. Without them, a later sync would corrupt weights."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ....errors import WeightSyncError
from ..transport.tensors import Weight
from . import layout

if TYPE_CHECKING:
    import torch

# In decoding, vLLM multiplies with views of MLA's kv_b_proj, and vllm-ascend with copies. See attention/mla_v1.py, and
# sfa_v1.py, where the copies have other names in v0.11.0.
_SOURCE = "kv_b_proj"
_COPIES = (("W_UV", "W_UK_T"), ("kv_b_proj_w_v", "kv_b_proj_w_k"))
# The engine V0, up to 0.9.1 (attention/attention.py), makes its copies once, when they are None: 0.7.3 in the forward
# pass, 0.9.1 after loading.
_V0_COPIES = ("w_vc", "w_kc")
_EXPERTS = ("w13_weight", "w2_weight")
_REFRESHES = "_verl_npu_refreshes_copies"


def lay_out_experts_for_loading(model: torch.nn.Module) -> None:
    """If vllm-ascend transposed the experts, restore the layout that vLLM's loader expects.

    Call this function only if `process_weights_after_loading` runs after the load, because that method transposes the
    experts again. vllm-ascend itself restores the layout only when an engine wakes up. In an engine that does not
    sleep, the loader would fail on transposed experts, or the experts would be transposed twice.

    Source: vllm-ascend v0.13.0 and later, `AscendUnquantizedFusedMoEMethod.process_weights_after_loading` and
    `NPUWorker.wake_up`. In v0.11.0, `transpose` records whether the experts are transposed, and the loader transposes
    new weights to match.
    """
    import torch

    for _, layer in model.named_modules():
        if _is_transposed_each_time(layer) and _are_transposed(layer):
            for name in _EXPERTS:
                held = getattr(layer, name)
                turned = torch.nn.Parameter(held.data.transpose(1, 2), requires_grad=False)
                vars(turned).update(vars(held))
                setattr(layer, name, turned)


def _is_transposed_each_time(layer: object) -> bool:
    """Return whether vllm-ascend transposes a layer's experts each time that it processes the layer's weights."""
    return getattr(getattr(layer, "quant_method", None), "transpose", None) is None


def refuse_square_experts(model: torch.nn.Module, laid_out_before_load: bool = False) -> None:
    """Raise WeightSyncError for square experts that are transposed, because their new weights would not be transposed.

    Square experts are loaded correctly if `lay_out_experts_for_loading` was called before the load.

    Source: vllm-ascend, `AscendUnquantizedFusedMoEMethod`. In v0.11.0 (`ops/common_fused_moe.py`), `transpose` becomes
    False once `w13_weight` is transposed to (experts, hidden, 2 * intermediate) and `w2_weight` to (experts,
    intermediate, hidden). The loader then decides from the shape of a new weight whether to transpose the weight. The
    shape of a square weight does not show whether a transposition is necessary. In v0.13.0 and later
    (`ops/fused_moe/fused_moe.py`), there is no `transpose`. Each call of `process_weights_after_loading` transposes
    the experts, and only a wake-up transposes them back. vLLM's own loader is used, and fails on transposed experts
    unless they are square.
    """
    for name, layer in model.named_modules():
        if not _are_transposed(layer) or (laid_out_before_load and _is_transposed_each_time(layer)):
            continue
        for weight in _EXPERTS:
            shape = tuple(getattr(layer, weight).shape)
            if shape[1] == shape[2]:
                raise WeightSyncError(
                    subject=f"{name}.{weight}",
                    found=f"vllm-ascend has transposed these square experts of shape {shape[1:]}, but would not "
                    "transpose their new weights, and would raise no error",
                    fix="change rollout.tensor_model_parallel_size, because the shape of the experts depends on it, "
                    "or use another rollout engine",
                )


def _are_transposed(layer: object) -> bool:
    """Return whether a layer's experts have vllm-ascend's layout instead of the layout that vLLM's loader expects."""
    quant_method = getattr(layer, "quant_method", None)
    if layout.UNQUANTIZED not in layout.kinds_of(quant_method):
        return False
    flag = getattr(quant_method, "transpose", None)
    if flag is not None:
        return flag is False
    if not all(hasattr(layer, name) for name in _EXPERTS):
        return False
    (_, rows, columns), (_, inner, outer) = (tuple(getattr(layer, name).shape) for name in _EXPERTS)
    # One of the two may be square, but never both.
    return (rows, columns) == (outer, 2 * inner)


def refuse_disposed_projections(model: torch.nn.Module) -> None:
    """Raise WeightSyncError if vllm-ascend has freed a projection that a sync must load.

    Source: `process_weights_after_loading` in `attention/sfa_v1.py`, vllm-ascend v0.13.0 and later. Sparse attention
    (DeepSeek-V3.2, GLM-5) copies kv_b_proj and then frees it. The projection cannot be restored from the copies.
    """
    for name, module in model.named_modules():
        impl = getattr(module, "impl", None)
        weight = getattr(getattr(impl, _SOURCE, None), "weight", None)
        if weight is not None and weight.numel() == 0 and _copy_names(impl) is not None:
            raise WeightSyncError(
                subject=f"{_SOURCE} of {name}",
                found="vllm-ascend's sparse attention freed this weight after loading it, so a weight sync cannot "
                "load new values into it",
                fix="use another rollout engine, or a version of vllm-ascend that keeps this weight, such as 0.11",
            )


def refresh_copies_on_load(model: Any) -> None:
    """Make `model.load_weights` refresh the copies of kv_b_proj that MLA keeps. The copies are refreshed in place,
    because captured graphs read from their addresses.

    The copies also stay in place when verl v0.7.1 or later processes the weights after each sync.
    Without this function, vllm-ascend 0.13.0 and earlier would create new copies each time (vllm-ascend#7473). The V0
    engine is an exception: this function creates new copies, because the V0 engine does not capture MLA in graphs.
    """
    if getattr(model, _REFRESHES, False):
        return
    impls = [getattr(module, "impl", None) for _, module in model.named_modules()]
    copying = [impl for impl in impls if impl is not None and _has_copies(impl)]
    once = [impl for impl in impls if impl is not None and all(hasattr(impl, name) for name in (_SOURCE, *_V0_COPIES))]
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
                _remake(impl)
        return loaded

    model.load_weights = load_weights
    setattr(model, _REFRESHES, True)


def is_copy(name: str) -> bool:
    """Return whether an attribute, specified as `Class.name`, is a copy of weights that is re-created after each
    sync."""
    attribute = name.partition(" ")[0].rpartition(".")[2]
    return attribute in {*_V0_COPIES, *(each for names in _COPIES for each in names)}


def _has_copies(impl: object) -> bool:
    names = _copy_names(impl)
    if names is None:
        return False
    source = getattr(impl, _SOURCE).weight
    return any(
        getattr(impl, name).untyped_storage().data_ptr() != source.untyped_storage().data_ptr() for name in names
    )


def _copy_names(impl: object) -> tuple[str, ...] | None:
    if not all(hasattr(impl, name) for name in (_SOURCE, "process_weights_after_loading")):
        return None
    return next((names for names in _COPIES if all(hasattr(impl, name) for name in names)), None)


def _refresh(impl: Any) -> None:
    names = _copy_names(impl) or ()
    impl.process_weights_after_loading(getattr(impl, names[0]).dtype)


def _keep_in_place(impl: Any) -> None:
    """Wrap the processing of weights, so that new copies are written into the existing copies if shape and dtype are
    the same."""
    import torch

    original = impl.process_weights_after_loading

    @functools.wraps(original)
    def process_weights_after_loading(*args: object, **options: object) -> None:
        held = {name: getattr(impl, name) for name in _copy_names(impl) or ()}
        with torch.no_grad():
            original(*args, **options)
            for name, tensor in held.items():
                made = getattr(impl, name)
                if made is not tensor and (made.shape, made.dtype) == (tensor.shape, tensor.dtype):
                    tensor.copy_(made)
                    setattr(impl, name, tensor)

    impl.process_weights_after_loading = process_weights_after_loading


def _remake(impl: object) -> None:
    for name in _V0_COPIES:
        setattr(impl, name, None)
    process = getattr(impl, "process_weights_after_loading", None)
    if process is not None:
        process(getattr(impl, _SOURCE).weight.dtype)
