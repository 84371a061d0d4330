"""How the installed vllm-ascend lays out experts and sparse attention after loading, and how a weight sync judges it;
prints one line of JSON."""

from __future__ import annotations

import importlib
import json
from types import SimpleNamespace
from typing import Any

EXPERTS, HIDDEN = 2, 64
SHAPES = {"square w13": HIDDEN // 2, "square w2": HIDDEN, "none is square": 48}
MODULES = ("vllm_ascend.ops.fused_moe.fused_moe", "vllm_ascend.ops.common_fused_moe")


def method() -> Any:
    """Return vllm-ascend's own object that lays experts out, without the engine whose settings it reads."""
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
            continue
        break
    module.is_enable_nz = lambda dtype: False
    kind = module.AscendUnquantizedFusedMoEMethod
    made = kind.__new__(kind)
    importlib.import_module("torch").nn.Module.__init__(made)
    if "transpose" in kind.__init__.__code__.co_names:
        made.transpose = True  # as its __init__ does
    return made


def model(intermediate: int) -> Any:
    """Return a model with one layer of experts, as vLLM's loader has them."""
    import torch

    layer: Any = torch.nn.Module()
    for name, shape in (("w13", (2 * intermediate, HIDDEN)), ("w2", (HIDDEN, intermediate))):
        weight = torch.nn.Parameter(torch.randn(EXPERTS, *shape, device="npu"), requires_grad=False)
        layer.register_parameter(f"{name}_weight", weight)
    layer.quant_method = method()
    out: Any = torch.nn.Module()
    out.experts = layer
    return out


def sparse() -> Any:
    """Return a model with vllm-ascend's sparse attention, after it was loaded."""
    import torch
    from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod

    kind = importlib.import_module("vllm_ascend.attention.sfa_v1").AscendSFAImpl
    impl = kind.__new__(kind)
    projection = LinearBase.__new__(LinearBase)
    torch.nn.Module.__init__(projection)
    projection.weight = torch.nn.Parameter(torch.randn(14, 8, dtype=torch.bfloat16, device="npu"), requires_grad=False)
    projection.quant_method = UnquantizedLinearMethod()
    impl.kv_b_proj, impl.kv_lora_rank, impl.qk_nope_head_dim, impl.v_head_dim = projection, 8, 4, 3
    impl.num_heads = impl.local_num_heads = 2
    off = ("dsa_cp", "mlapo", "sfa_prolog_v3", "sparse_li_c8")
    for name in (*(f"enable_{name}" for name in off), "has_indexer", "use_sparse_c8_indexer"):
        setattr(impl, name, False)
    impl.process_weights_after_loading(torch.bfloat16)
    out: Any = torch.nn.Module()
    out.attention = torch.nn.Module()
    out.attention.impl = impl
    return out


def copies_follow(model: Any) -> bool:
    """Return whether sparse attention multiplies with copies of the new weights after they were loaded."""
    import torch

    from verl_npu.features.weight_sync.engines import processing

    impl = model.attention.impl

    def load_weights(weights: Any) -> None:
        for _, weight in weights:
            impl.kv_b_proj.weight.data.copy_(weight)

    model.load_weights = load_weights
    processing.refresh_copies_on_load(model)
    new = torch.randn(14, 8, dtype=torch.bfloat16, device="npu")
    model.load_weights([("layers.0.self_attn.kv_b_proj.weight", new)])
    by_head = new.view(2, 4 + 3, 8)
    expected = (by_head[:, :4], by_head[:, 4:].transpose(1, 2))
    return all(map(torch.equal, (impl.kv_b_proj_w_k, impl.kv_b_proj_w_v), expected))


def main() -> None:
    """Print the findings."""
    import torch
    import torch_npu
    import virtual_ascend

    from verl_npu.errors import WeightSyncError
    from verl_npu.features.weight_sync.engines import processing

    def verdict(judge: Any, *arguments: Any) -> str | None:
        try:
            judge(*arguments)
        except WeightSyncError as error:
            return str(error)
        return None

    config = SimpleNamespace(enable_fused_mc2=0, weight_nz_mode=0)
    importlib.import_module("vllm_ascend.ascend_config").get_ascend_config = lambda: config
    said: dict[str, Any] = {"torch_npu": torch_npu.__version__, "device": virtual_ascend.description()}
    for name, intermediate in SHAPES.items():
        each = model(intermediate)
        w13, w2 = each.experts.w13_weight.data.clone(), each.experts.w2_weight.data.clone()
        found = {"before": verdict(processing.refuse_square_experts, each)}
        each.experts.quant_method.process_weights_after_loading(each.experts)
        found["after"] = verdict(processing.refuse_square_experts, each)
        found["laid out before each load"] = verdict(processing.refuse_square_experts, each, True)
        processing.lay_out_experts_for_loading(each)
        held = (each.experts.w13_weight.data, each.experts.w2_weight.data)
        found["is as the loader expects"] = all(map(torch.equal, held, (w13, w2)))
        said[name] = found
    attention = sparse()
    said["freed"] = attention.attention.impl.kv_b_proj.weight.numel() == 0
    said["refused"] = verdict(processing.refuse_disposed_projections, attention)
    said["copies follow"] = None if said["freed"] else copies_follow(attention)
    print("ANSWER " + json.dumps(said))


if __name__ == "__main__":
    main()
