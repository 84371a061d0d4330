"""Print the costs of cases of one NPU: `python -m tests.phantom.single [CASE…]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_npu
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3Config,
    Qwen3MoeConfig,
)

from .measuring import Case, answer, trained

HIDDEN, VOCABULARY, LENGTH = 128, 1024, 96
_SHAPE = {
    "hidden_size": HIDDEN,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
}


def _config(**changes: Any) -> Qwen3Config:
    return Qwen3Config(**{**_SHAPE, "head_dim": 32, "pad_token_id": 0, **changes})


def _model(
    attention: str = "sdpa", dtype: torch.dtype = torch.bfloat16, kind: Any = AutoModelForCausalLM, **changes: Any
) -> nn.Module:
    config = changes.pop("config", None) or _config(**changes)
    return kind.from_config(config, dtype=dtype, attn_implementation=attention).npu().train()


def _ids(batch: int = 2) -> Tensor:
    return torch.randint(1, VOCABULARY, (batch, LENGTH)).npu()


def _causal(model: nn.Module, ids: Tensor, **more: Any) -> Callable[[], Tensor]:
    return lambda: model(input_ids=ids, labels=ids, use_cache=False, **more).loss


def _adamw(model: nn.Module, **how: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-3, **how)


def _training(attention: str = "sdpa", dtype: torch.dtype = torch.bfloat16, **how: Any) -> Case:
    def case() -> None:
        model = _model(attention, dtype)
        trained(_causal(model, _ids()), _adamw(model, **how))

    return case


def _recomputing(reentrant: bool) -> Case:
    def case() -> None:
        model = _model()
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        if reentrant:
            model.enable_input_require_grads()
        trained(_causal(model, _ids()), _adamw(model))

    return case


def lora() -> None:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(_model(), LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
    trained(_causal(model, _ids()), _adamw(model))


def padded() -> None:
    ids, mask = _ids(), torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, :20] = 0
    model = _model()
    trained(_causal(model, ids, attention_mask=mask.npu()), _adamw(model))


def critic() -> None:
    model = _model(kind=AutoModelForTokenClassification, num_labels=1)
    ids = _ids()

    def step() -> Tensor:
        values = model(input_ids=ids, use_cache=False).logits.squeeze(-1)
        return torch.clamp(values - 1.0, -0.5, 0.5).square().mean()

    trained(step, _adamw(model))


def _policy_loss(old: Tensor, new: Tensor, mask: Tensor) -> Tensor:
    ratio = torch.exp(torch.clamp(new - old, -20, 20))
    worst = torch.maximum(-ratio, -torch.clamp(ratio, 0.8, 1.2))
    return (worst * mask).sum() / mask.sum()


def _log_probs(logits: Tensor, ids: Tensor) -> Tensor:
    return torch.log_softmax(logits.float(), -1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def policy() -> None:
    """Run the phases of GRPO but the rollout: old log-probabilities, then the update with entropy."""
    model, ids = _model(), _ids(4)
    mask = torch.ones(4, LENGTH).npu()
    optimizer = _adamw(model)
    with torch.no_grad():
        old = torch.cat([_log_probs(model(input_ids=part, use_cache=False).logits, part) for part in ids.split(2)])

    def step() -> Tensor:
        logits = model(input_ids=ids, use_cache=False).logits
        chances = torch.softmax(logits, -1)
        entropy = torch.logsumexp(logits, -1) - (chances * logits).sum(-1)
        return _policy_loss(old, _log_probs(logits, ids), mask) - 0.01 * entropy.mean()

    trained(step, optimizer)


def packed() -> None:
    """Attend to sequences one after the other without padding, in fused attention's layout for them."""
    heads, width = 4, 32
    ends = [30, 31, 96, 192]
    project = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN, dtype=torch.bfloat16) for _ in range(4)).npu()
    mask = torch.ones(2048, 2048, dtype=torch.bool, device="npu").triu(1)
    tokens = torch.randn(192, HIDDEN, dtype=torch.bfloat16).npu()

    def step() -> Tensor:
        q, k, v = (layer(tokens).view(-1, heads, width) for layer in project[:3])
        out = torch_npu.npu_fusion_attention(
            q,
            k,
            v,
            heads,
            "TND",
            atten_mask=mask,
            scale=0.2,
            sparse_mode=3,
            actual_seq_qlen=ends,
            actual_seq_kvlen=ends,
        )[0]
        return project[3](out.flatten(1)).square().mean()

    trained(step, _adamw(project))


def _fusion(layout: str) -> Case:
    shapes = {"BSH": (2, 64, 128), "SBH": (64, 2, 128), "BSND": (2, 64, 4, 32), "BNSD": (2, 4, 64, 32)}

    def case() -> None:
        inputs = [torch.randn(shapes[layout], device="npu", requires_grad=True) for _ in range(3)]
        torch_npu.npu_fusion_attention(*inputs, 4, layout, scale=0.2)[0].square().sum().backward()

    return case


def experts() -> None:
    """Train experts with a router of zeros, which chooses the same ones with and without values."""
    config = Qwen3MoeConfig(
        **{**_SHAPE, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "head_dim": 32}
    )
    model = _model(config=config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("mlp.gate.weight"):
                weight.zero_().requires_grad_(False)
    trained(_causal(model, _ids()), _adamw(model))


def grouped_experts() -> None:
    """Run the NPU's own operators for experts: permuted tokens, and products of their groups."""
    tokens = torch.randn(128, HIDDEN, dtype=torch.bfloat16, device="npu")
    weights = torch.randn(4, HIDDEN, HIDDEN, dtype=torch.bfloat16, device="npu")
    chosen = (torch.arange(256).view(128, 2) % 4).to(torch.int32).npu()
    sorted_tokens, places = torch_npu.npu_moe_token_permute(tokens, chosen)
    counts = torch.bincount(chosen.view(-1), minlength=4).cumsum(0)
    out = torch_npu.npu_grouped_matmul(
        [sorted_tokens], [weights], group_list=counts, split_item=2, group_type=0, group_list_type=0
    )[0]
    torch_npu.npu_moe_token_unpermute(out, places, torch.full((128, 2), 0.5, device="npu"))


def offload() -> None:
    """Move weights and the optimizer's state to the host and back, as between phases of a training."""
    model = _model()
    optimizer = _adamw(model)
    step = _causal(model, _ids())
    for _ in range(2):
        trained(step, optimizer, 1)
        model.cpu()
        for state in optimizer.state.values():
            state.update({name: value.cpu() for name, value in state.items() if isinstance(value, Tensor)})
        model.npu()
        for state in optimizer.state.values():
            state.update({name: value.npu() for name, value in state.items() if name != "step"})


def saved_on_host() -> None:
    model = _model()
    with torch.autograd.graph.save_on_cpu():
        loss = _causal(model, _ids())()
    loss.backward()


def accumulation() -> None:
    model = _model(dtype=torch.float32)
    optimizer = _adamw(model)
    for _ in range(3):
        _causal(model, _ids())().backward()
    optimizer.step()


def autocast() -> None:
    model = _model(dtype=torch.float32)
    with torch.autocast("npu", torch.bfloat16):
        loss = _causal(model, _ids())()
    loss.backward()


def generation() -> None:
    model = _model().eval()
    with torch.no_grad():
        model.generate(_ids(), do_sample=False, min_new_tokens=12, max_new_tokens=12)


def sampling() -> None:
    model = _model().eval()
    with torch.no_grad():
        model.generate(_ids(), do_sample=True, top_k=20, top_p=0.9, min_new_tokens=8, max_new_tokens=8)


def images() -> None:
    vision = {"depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "out_hidden_size": HIDDEN}
    vision |= {"fullatt_block_indexes": [1], "window_size": 56}
    rope = {"type": "mrope", "mrope_section": [4, 6, 6]}
    config = Qwen2_5_VLConfig(
        text_config={**_SHAPE, "rope_scaling": rope}, vision_config=vision, image_token_id=1, vision_start_token_id=2
    )
    model = Qwen2_5_VLForConditionalGeneration._from_config(config, dtype=torch.bfloat16).npu().train()
    grid = torch.tensor([[1, 8, 8]]).npu()
    pixels = torch.randn(64, 3 * 2 * 14 * 14, dtype=torch.bfloat16).npu()
    ids = torch.cat([torch.tensor([2]), torch.full((16,), 1), torch.arange(3, 43)]).unsqueeze(0).npu()
    trained(
        lambda: model(input_ids=ids, labels=ids, pixel_values=pixels, image_grid_thw=grid, use_cache=False).loss,
        _adamw(model),
    )


def losses() -> None:
    """Compute losses and norms over large logits, each with its gradient."""
    logits = torch.randn(LENGTH, VOCABULARY, device="npu", requires_grad=True)
    labels = torch.randint(VOCABULARY, (LENGTH,)).npu()
    target = torch.randn(LENGTH, VOCABULARY, device="npu").softmax(-1)
    for loss in (
        functional.cross_entropy(logits, labels),
        functional.kl_div(logits.log_softmax(-1), target, reduction="batchmean"),
        functional.smooth_l1_loss(logits, target),
        functional.layer_norm(logits, (VOCABULARY,)).square().mean(),
        functional.dropout(logits, 0.1).logsumexp(-1).mean(),
        logits.topk(8).values.mean(),
        logits.sort(-1).values.cumsum(-1).mean(),
    ):
        loss.backward()


def optimizer_on_host() -> None:
    """The optimizer's weights and state are on the host, in float32, as in Megatron's HybridDeviceOptimizer."""
    model = _model()
    weights = list(model.parameters())
    copies = [weight.detach().float().cpu() for weight in weights]
    optimizer = torch.optim.AdamW(copies, lr=1e-3)
    step = _causal(model, _ids())
    for _ in range(2):
        step().backward()
        for weight, copy in zip(weights, copies, strict=True):
            copy.grad = weight.grad.float().cpu()
            weight.grad = None
        torch.nn.utils.clip_grad_norm_(copies, 1.0)
        optimizer.step()
        with torch.no_grad():
            for weight, copy in zip(weights, copies, strict=True):
                weight.copy_(copy)


CASES: dict[str, Case] = {
    "sdpa": _training(),
    "sdpa, float32": _training(dtype=torch.float32),
    "eager attention": _training("eager"),
    "AdamW, fused": _training(fused=True),
    "AdamW, one by one": _training(foreach=False),
    "recomputation": _recomputing(reentrant=False),
    "recomputation, reentrant": _recomputing(reentrant=True),
    "LoRA": lora,
    "padding": padded,
    "critic": critic,
    "policy": policy,
    "packed sequences": packed,
    **{f"fused attention, {layout}": _fusion(layout) for layout in ("BSH", "SBH", "BSND", "BNSD")},
    "experts": experts,
    "grouped experts": grouped_experts,
    "offload": offload,
    "activations on the host": saved_on_host,
    "optimizer on the host": optimizer_on_host,
    "gradient accumulation": accumulation,
    "autocast": autocast,
    "generation": generation,
    "sampling": sampling,
    "images": images,
    "losses": losses,
}

if __name__ == "__main__":
    answer(CASES)
