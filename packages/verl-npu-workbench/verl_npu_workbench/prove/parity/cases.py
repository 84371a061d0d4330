"""The models and batches to compare: a tiny model of every architecture with fused operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers

VOCABULARY = 96
IMAGE, VISION_START, VISION_END = 90, 91, 92
MODELS = ("qwen2", "qwen3", "qwen3_moe", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")


@dataclass(frozen=True)
class Case:
    """One comparison of a patched model on an NPU with the unpatched model on the host."""

    model: str
    batch: str
    head: int
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.model}-{self.batch}-{self.head}-{self.dtype}"


def cases() -> Iterator[Case]:
    """Yield the cases for each model in the installed transformers: all batches in float32 with head size 64, one of
    them in float32 with head size 128, and one of them in bfloat16 with head size 64."""
    for model in MODELS:
        if hasattr(transformers, _classes(model)[1]):
            batches = ("left", "right", "single", "image") if "vl" in model else ("left", "right", "packed", "single")
            for batch in batches:
                yield Case(model, batch, 64, "float32")
            yield Case(model, batches[-2 if "vl" not in model else 0], 128, "float32")
            yield Case(model, "right", 64, "bfloat16")


def _classes(model: str) -> tuple[str, str]:
    stem = {
        "qwen2": "Qwen2",
        "qwen3": "Qwen3",
        "qwen3_moe": "Qwen3Moe",
        "qwen2_5_vl": "Qwen2_5_VL",
        "qwen3_vl": "Qwen3VL",
        "qwen3_vl_moe": "Qwen3VLMoe",
    }[model]
    return f"{stem}Config", f"{stem}ForConditionalGeneration" if "vl" in model else f"{stem}ForCausalLM"


def _text(case: Case) -> dict[str, Any]:
    common: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 4 * case.head if case.model == "qwen2_5_vl" else 96,
        "intermediate_size": 112,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
    }
    if case.model != "qwen2_5_vl":
        common["head_dim"] = case.head
    if "moe" in case.model:
        common |= {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "norm_topk_prob": True}
        common |= {"decoder_sparse_step": 1, "mlp_only_layers": [], "output_router_logits": False}
    if "vl" in case.model:
        half, part = case.head // 2, case.head // 2 * 3 // 8
        section = [half - 2 * part, part, part]
        kind = "default" if "3" in case.model else "mrope"
        common["rope_scaling"] = {"type": kind, "rope_type": "default", "mrope_section": section}
        if "qwen3" in case.model:
            common["rope_scaling"]["mrope_interleaved"] = True
            common["rope_theta"] = 10000.0
    return common


def configuration(case: Case) -> Any:
    """Return the configuration of a case's model."""
    config, _ = _classes(case.model)
    text = _text(case)
    if "vl" not in case.model:
        return getattr(transformers, config)(**text)
    tokens = {"image_token_id": IMAGE, "vision_start_token_id": VISION_START, "vision_end_token_id": VISION_END}
    tokens["video_token_id"] = 93
    patches = {"patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2, "depth": 2, "num_heads": 2}
    if case.model == "qwen2_5_vl":
        vision = {"hidden_size": 64, "intermediate_size": 80, "out_hidden_size": text["hidden_size"], **patches}
        vision |= {"window_size": 16, "fullatt_block_indexes": [1], "in_channels": 3}
    else:
        vision = {"hidden_size": 64, "intermediate_size": 80, "out_hidden_size": text["hidden_size"], **patches}
        vision |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
    return getattr(transformers, config)(text_config=text, vision_config=vision, tie_word_embeddings=False, **tokens)


def model(case: Case, attention: str) -> Any:
    """Return a case's model in float32, with the same weights in every process."""
    torch.manual_seed(7)
    config = configuration(case)
    made = getattr(transformers, _classes(case.model)[1])._from_config(config, attn_implementation=attention)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in sorted(made.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            # Norms are near 1 and everything else is small, so that activations neither vanish nor grow. Routers get
            # larger weights: a choice of experts that depends on rounding would show nothing about the arithmetic.
            scale = 0.2 if name.endswith("mlp.gate.weight") else 0.08
            parameter.copy_(1 + 0.1 * noise if "norm" in name and name.endswith("weight") else scale * noise)
    return made.train()


def batch(case: Case, *, packed_by_mask: bool) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the inputs of a case, and a mask of the tokens that are compared [batch, seqlen].

    In a packed batch, position ids mark the sequences. For attention that ignores position ids, set `packed_by_mask`
    to get a four-dimensional mask.
    """
    generator = torch.Generator().manual_seed(13)
    rows, width = (1, 14) if case.batch in ("packed", "single") else (3, 12)
    ids = torch.randint(0, 90, (rows, width), generator=generator)
    kept = torch.ones(rows, width, dtype=torch.long)
    if case.batch in ("left", "right"):
        for row, dropped in enumerate((4, 0, 7)):
            where = slice(0, dropped) if case.batch == "left" else slice(width - dropped, width)
            kept[row, where] = 0
    inputs = {"input_ids": ids}
    if case.batch == "packed":
        lengths = (5, 1, 8)
        inputs["position_ids"] = torch.cat([torch.arange(n) for n in lengths]).unsqueeze(0)
        if packed_by_mask:
            block = torch.block_diag(*(torch.ones(n, n).tril() for n in lengths)).bool()
            inputs["attention_mask"] = torch.where(block, 0.0, torch.finfo(torch.float32).min)[None, None]
    elif case.batch == "image":
        ids[:, 2:8] = torch.tensor([VISION_START, IMAGE, IMAGE, IMAGE, IMAGE, VISION_END])
        inputs["attention_mask"] = kept
        inputs["pixel_values"] = torch.randn(rows * 16, 3 * 2 * 4 * 4, generator=generator)
        inputs["image_grid_thw"] = torch.tensor([[1, 4, 4]] * rows)
        inputs["mm_token_type_ids"] = (ids == IMAGE).long()
    else:
        inputs["attention_mask"] = kept
        if "vl" not in case.model:
            inputs["position_ids"] = (kept.cumsum(-1) - 1).clamp(min=0)
    return inputs, kept
