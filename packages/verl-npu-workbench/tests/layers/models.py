"""Tiny models with random weights, and an engine that is one of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from verl_npu_workbench.layers.recording import (
    LOGPROBS,
    Batch,
    Recorder,
    Recording,
    chosen,
    recorded,
    weights_of,
)
from verl_npu_workbench.layers.reference import causal

Allowed = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

KINDS: Mapping[str, Mapping[str, Any]] = {
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "qwen3_moe": {"head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 64,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 24,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 48,
        "first_k_dense_replace": 1,
        "n_group": 2,
        "topk_group": 1,
    },
}
_ROTARY = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
_VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}
WITH_PICTURES: Mapping[str, Mapping[str, Any]] = {
    # transformers 4 calls the parameters scaling.
    "qwen2_5_vl": {"rope_parameters": _ROTARY, "rope_scaling": _ROTARY},
    "qwen3_5": {
        "head_dim": 32,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 24,
        "rope_parameters": {**_ROTARY, "partial_rotary_factor": 0.5},
    },
}
"""Models that also take pictures; only text is compared."""
VOCABULARY = 128


def make(kind: str, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: object) -> Any:
    """Return a model with random weights, biases, and norms."""
    small = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    }
    auto, text = AutoModelForCausalLM, {**small, **KINDS.get(kind, {}), **WITH_PICTURES.get(kind, {}), **changes}
    if kind in WITH_PICTURES:
        if kind not in CONFIG_MAPPING:
            pytest.skip(f"this transformers has no {kind}")
        auto, text = AutoModelForImageTextToText, {"text_config": text, "vision_config": _VISION}
    config = AutoConfig.for_model(kind, **text)
    torch.manual_seed(seed)
    model = auto.from_config(config, attn_implementation="eager").float().eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
        else:
            parameter.data += 0.1 * torch.randn_like(parameter)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer += 0.3 * torch.randn_like(buffer)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def _batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    lengths, prompts = (12, 40, 25), (5, 20, 10)
    tokens = (tuple(torch.randint(1, VOCABULARY, (length,), generator=generator).tolist()) for length in lengths)
    return Batch(tuple(tokens), prompts)


BATCH = _batch()


def answer(
    model: Any,
    batch: Batch = BATCH,
    allowed: Allowed = causal,
    positions: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = lambda rows, places: places,
    logprobs: Callable[[torch.Tensor], torch.Tensor] = lambda logits: logits,
) -> Recording:
    """Record a batch whose sequences are packed into one, as engines compute it."""
    rows = torch.tensor([row for row, _ in batch.places()])
    places = torch.tensor([at for _, at in batch.places()])
    hidden = torch.zeros(len(rows), len(rows), dtype=model.dtype)
    hidden = hidden.masked_fill(~allowed(rows, places), torch.finfo(model.dtype).min)[None, None]
    recorder = Recorder()
    with torch.no_grad(), recorded(model, recorder):
        recorder.begin(batch.places())
        made = model(
            input_ids=batch.inputs()[None],
            position_ids=positions(rows, places)[None],
            attention_mask=hidden,
            use_cache=False,
        ).logits[0]
        following = torch.tensor([batch.tokens[row][at + 1] for row, at in batch.places()])
        recorder.add(LOGPROBS, chosen(logprobs(made.float()), following))
    return recorder.recording(batch, model.dtype, weights_of(model))


def answer_padded(model: Any, length: int, token: int, batch: Batch = BATCH) -> Recording:
    """Record a batch whose prompts are padded on the left, with attention that sees the padding."""
    recorder = Recorder()
    with torch.no_grad(), recorded(model, recorder):
        for row, tokens in enumerate(batch.tokens):
            pads = length - batch.prompts[row]
            given = torch.tensor([[token] * pads + [*tokens[:-1]]])
            recorder.begin([None] * pads + [(row, at) for at in range(len(tokens) - 1)])
            positions = torch.tensor([[0] * pads + [*range(len(tokens) - 1)]])
            count = given.shape[1]
            hidden = torch.full((count, count), torch.finfo(model.dtype).min, dtype=model.dtype).triu(1)[None, None]
            made = model(input_ids=given, position_ids=positions, attention_mask=hidden, use_cache=False).logits[0]
            recorder.add(LOGPROBS, chosen(made.float(), torch.tensor([0] * pads + [*tokens[1:]])))
    return recorder.recording(batch, model.dtype, weights_of(model))


@contextmanager
def replaced(model: Any, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """Let the file of a model's class use another function, which gets the original one first."""
    names = vars(sys.modules[type(model).__module__])
    before = names[name]
    names[name] = lambda *args, **named: replacement(before, *args, **named)
    try:
        yield
    finally:
        names[name] = before


def only(recording: Recording, names: Sequence[str], held: bool = True) -> Recording:
    """Return a recording that has only these values, and the side's weights if these are held."""
    values = {name: recording.values[name] for name in names}
    return Recording(recording.batch, recording.dtype, values, recording.held if held else lambda name: None)
