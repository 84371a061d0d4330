"""Effects of the patched models besides equal results: `python -m tests.parity.behaviour npu FILE`.

Each function below is one observation, made in this process; its result is saved under its name.
"""

from __future__ import annotations

import copy
import importlib.machinery
import sys
import types
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch_npu
from verl_npu_workbench.prove.parity import cases
from verl_npu_workbench.prove.parity.compare import BFLOAT16_UNIT, distance
from verl_npu_workbench.prove.parity.side import count_calls

CALLS: Counter[str] = Counter()
count_calls(CALLS)  # before transformers takes its copies

import transformers  # noqa: E402
import verl  # noqa: E402, F401
from transformers.models.qwen3_moe import modeling_qwen3_moe as qwen3_moe  # noqa: E402

import verl_npu  # noqa: E402, F401

MIXED = cases.Case("qwen3_moe", "right", 64, "float32")


def _gradients(model: Any, device: str) -> dict[str, torch.Tensor]:
    inputs, kept = cases.batch(MIXED, packed_by_mask=False)
    logits = model(**{name: value.to(device) for name, value in inputs.items()}, use_cache=False).logits
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(17)) * kept.unsqueeze(-1)
    (logits * weights.to(device)).sum().backward()
    found = {n: p.grad.detach().cpu() for n, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach().cpu() * kept.unsqueeze(-1), **found}


def _furthest(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    zero = torch.zeros(())
    return max(
        distance(found.get(name, zero), expected.get(name, zero * found.get(name, zero)))
        if name in expected and name in found
        else float((found.get(name, zero) if name in found else expected[name]).abs().max())
        for name in found.keys() | expected.keys()
    )


def _both(change: Callable[[Any], Any]) -> dict[str, Any]:
    """Run a changed model on the CPU and on the NPU; return their distance, and the operators called on the NPU."""
    expected = _gradients(change(cases.model(MIXED, "eager")), "cpu")
    CALLS.clear()
    found = _gradients(change(cases.model(MIXED, "flash_attention_2")).to("npu"), "npu")
    return {"away": _furthest(found, expected), "calls": dict(CALLS), "gradients": sorted(found)}


def adapters_on_experts() -> dict[str, Any]:
    from peft import LoraConfig, get_peft_model

    def adapted(model: Any) -> Any:
        torch.manual_seed(3)
        names = ["gate_proj", "up_proj", "down_proj"]
        model = get_peft_model(model, LoraConfig(r=2, target_modules=names, init_lora_weights=False))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora" in name:
                    seed = sum(map(ord, name))
                    noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
                    parameter.copy_(0.1 * noise)
        return model

    return _both(adapted)


def checkpointing() -> dict[str, Any]:
    def with_checkpoints(model: Any) -> Any:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        return model

    return _both(with_checkpoints)


def hooks_on_experts() -> dict[str, Any]:
    seen: list[str] = []

    def hooked(model: Any) -> Any:
        model.model.layers[0].mlp.experts[2].register_forward_hook(
            lambda module, *_: seen.append(module.weight_device())
        )
        expert = model.model.layers[0].mlp.experts[2]
        expert.weight_device = lambda: expert.up_proj.weight.device.type
        return model

    return {**_both(hooked), "seen": sorted(set(seen))}


def sharded() -> dict[str, Any]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("hccl", store=store, rank=0, world_size=1)
    expected = _gradients(cases.model(MIXED, "eager"), "cpu")
    model = cases.model(MIXED, "flash_attention_2").to("npu")
    for n, layer in enumerate(model.model.layers):
        model.model.layers[n] = FullyShardedDataParallel(layer, device_id=0, use_orig_params=False)
    model = FullyShardedDataParallel(model, device_id=0, use_orig_params=False)
    CALLS.clear()
    inputs, kept = cases.batch(MIXED, packed_by_mask=False)
    logits = model(**{name: value.to("npu") for name, value in inputs.items()}, use_cache=False).logits
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(17)) * kept.unsqueeze(-1)
    (logits * weights.npu()).sum().backward()
    norm = sum((p.grad.double() ** 2).sum().item() for p in model.parameters() if p.grad is not None) ** 0.5
    whole = sum((g.double() ** 2).sum().item() for n, g in expected.items() if n != "logits") ** 0.5
    away = distance(logits.detach().cpu() * kept.unsqueeze(-1), expected["logits"])
    return {"away": max(away, abs(norm - whole) / whole), "calls": dict(CALLS)}


def other_architectures() -> dict[str, Any]:
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config).to("npu")
    CALLS.clear()
    model(input_ids=torch.arange(6).unsqueeze(0).npu())
    return {"calls": dict(CALLS)}


def missing_operators() -> dict[str, Any]:
    """Observe a block of experts without torch_npu's grouped product, and without its operators that permute."""
    block = qwen3_moe.Qwen3MoeSparseMoeBlock(cases.configuration(MIXED))
    x = torch.randn(2, 5, 96)
    results = []
    for device, missing in (
        ("cpu", ()),
        ("npu", ("npu_grouped_matmul",)),
        ("npu", ("npu_moe_token_permute", "npu_moe_token_unpermute")),
    ):
        taken = {name: vars(torch_npu).pop(name) for name in missing}
        try:
            CALLS.clear()
            made, given = copy.deepcopy(block).to(device), x.clone().to(device).requires_grad_()
            out = made(given)[0]
            out.square().sum().backward()
            weights = [made.gate.weight.grad, made.experts[0].up_proj.weight.grad]
            results.append(
                ([t.detach().cpu() for t in (out, given.grad, *filter(torch.is_tensor, weights))], dict(CALLS))
            )
        finally:
            vars(torch_npu).update(taken)
    (expected, _), *others = results
    names = ("product", "permutation")
    return {
        name: {"away": max(map(distance, found, expected)), "calls": calls}
        for name, (found, calls) in zip(names, others, strict=True)
    }


def dtypes_of_norms() -> dict[str, Any]:
    found = {}
    for x_dtype in (torch.float32, torch.bfloat16):
        for weight_dtype in (torch.float32, torch.bfloat16):
            norm = qwen3_moe.Qwen3MoeRMSNorm(64).to(weight_dtype)
            x = torch.randn(3, 64).to(x_dtype)
            there = copy.deepcopy(norm).npu()(x.npu())
            here = norm(x)
            found[f"{x_dtype}, {weight_dtype}"] = (
                there.dtype == here.dtype,
                distance(there.float().cpu(), here.float()),
            )
    return found


def units_of_bfloat16() -> dict[str, float]:
    """Return how many units in the last place each module's bf16 output and gradient are away from float32."""
    from transformers.models.qwen3 import modeling_qwen3 as qwen3

    torch.manual_seed(5)
    config = cases.configuration(MIXED)
    modules: dict[str, Any] = {
        "norm": qwen3_moe.Qwen3MoeRMSNorm(96),
        "mlp": qwen3.Qwen3MLP(cases.configuration(cases.Case("qwen3", "right", 64, "float32"))),
        "experts": qwen3_moe.Qwen3MoeSparseMoeBlock(config),
    }
    with torch.no_grad():
        modules["norm"].weight.copy_(1 + 0.1 * torch.randn(96))
        modules["experts"].gate.weight.copy_(0.5 * torch.randn(8, 96))
    found = {}
    for name, module in modules.items():
        module = module.bfloat16()
        x = torch.randn(2, 9, 96).bfloat16()
        results = []
        for dtype, device in ((torch.float32, "cpu"), (torch.bfloat16, "npu")):
            made, given = copy.deepcopy(module).to(dtype).to(device), x.to(dtype).to(device).requires_grad_()
            out = made(given)
            out = out[0] if isinstance(out, tuple) else out
            out.sum().backward()
            results.append((out.detach().float().cpu(), given.grad.float().cpu()))
        for kind, there, here in zip(("output", "gradient"), results[1], results[0], strict=True):
            found[f"{name} {kind}"] = distance(there, here) / BFLOAT16_UNIT
    q, k, angle = torch.randn(1, 4, 9, 64), torch.randn(1, 2, 9, 64), torch.randn(1, 9, 32)
    angle = torch.cat((angle, angle), -1)
    q, k, cos, sin = (t.bfloat16() for t in (q, k, angle.cos(), angle.sin()))
    here = qwen3.apply_rotary_pos_emb(*(t.float() for t in (q, k, cos, sin)))
    there = qwen3.apply_rotary_pos_emb(*(t.npu() for t in (q, k, cos, sin)))
    found["rotary output"] = max(
        distance(t.float().cpu(), h) / BFLOAT16_UNIT for t, h in zip(there, here, strict=True)
    )
    return found


def autocast() -> dict[str, Any]:
    block = qwen3_moe.Qwen3MoeSparseMoeBlock(cases.configuration(MIXED))
    with torch.no_grad():
        block.gate.weight.copy_(torch.randn(8, 96, generator=torch.Generator().manual_seed(2)))
    x = torch.randn(2, 5, 96, generator=torch.Generator().manual_seed(4))
    expected = block(x)[0]
    CALLS.clear()
    with torch.autocast("npu", torch.bfloat16):
        found = copy.deepcopy(block).npu()(x.npu())[0]
    return {
        "units": distance(found.float().cpu(), expected) / BFLOAT16_UNIT,
        "dtype": str(found.dtype),
        "calls": dict(CALLS),
    }


def _window(length: int, **changes: Any) -> Any:
    config = transformers.Qwen2Config(
        vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, use_sliding_window=True, sliding_window=6, max_window_layers=0, **changes
    )  # fmt: skip
    model = transformers.Qwen2ForCausalLM._from_config(config, attn_implementation="flash_attention_2").to("npu")
    ids = torch.arange(length).unsqueeze(0).npu()
    try:
        model(input_ids=ids, use_cache=False)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "computed"


def sliding_windows() -> dict[str, str]:
    return {"within": _window(6), "beyond": _window(7)}


def admission() -> dict[str, str]:
    """Observe flash attention with the package kernels installed, and beside MindSpeed's dummy flash_attn."""
    dummy = types.ModuleType("flash_attn")
    dummy.__spec__ = importlib.machinery.ModuleSpec("flash_attn", None)
    config = cases.configuration(cases.Case("qwen2", "right", 64, "float32"))
    found = {}
    before = transformers.modeling_utils.is_kernels_available
    for name in ("kernels", "dummy"):
        try:
            if name == "dummy":
                sys.modules["flash_attn"] = dummy
            else:
                transformers.modeling_utils.is_kernels_available = lambda: True
            model = transformers.Qwen2ForCausalLM._from_config(config, attn_implementation="flash_attention_2")
            found[name] = model.config._attn_implementation
        finally:
            sys.modules.pop("flash_attn", None)
            transformers.modeling_utils.is_kernels_available = before
    return found


def log_probabilities() -> float:
    """Compare upstream's function that imports flash_attn in its middle with the padded computation."""
    from verl.utils.torch_functional import log_probs_from_logits_response_rmpad

    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 20, (2, 8), generator=generator)
    logits = torch.randn(2, 8, 20, generator=generator)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1], [1] * 8])
    expected = logits.log_softmax(-1)[:, -4:-1].gather(-1, ids[:, -3:, None]).squeeze(-1)
    packed = logits.flatten(0, 1)[mask.flatten().bool()]
    found = log_probs_from_logits_response_rmpad(ids.npu(), mask.npu(), packed.npu(), 3)
    return distance(found.cpu(), expected)


OBSERVATIONS = (
    adapters_on_experts,
    checkpointing,
    hooks_on_experts,
    sharded,
    other_architectures,
    missing_operators,
    dtypes_of_norms,
    units_of_bfloat16,
    autocast,
    sliding_windows,
    admission,
    log_probabilities,
)


def main() -> None:
    """Make every observation, and save them."""
    _, path, *names = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.save({o.__name__: o() for o in OBSERVATIONS if not names or o.__name__ in names}, path)


if __name__ == "__main__":
    main()
