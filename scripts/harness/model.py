"""Generates a small model with random weights."""

from __future__ import annotations

from pathlib import Path

from harness.errors import BadInput
from verl_npu.language import gettext as _

# The smallest model whose reward rises visibly in 40 steps. vLLM requires heads of at least 64.
LAYERS, HIDDEN, HEADS, VOCABULARY = 2, 128, 2, 512
EXPERTS_A_TOKEN = 2


def generate(folder: Path, seed: int, key_value_heads: int = 1, experts: int = 0, *, padded: bool = True) -> Path:
    """Write a Qwen2 model or, with `experts`, a Qwen3-MoE model. It has random weights and a byte-level tokenizer.

    The same seed gives the same model. Unless `padded` is set, the vocabulary has no entries beyond the tokenizer's.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen3MoeConfig
    from verl_npu_workbench.rehearse import small_model

    tokens = small_model.tokenizer(folder)
    config = (Qwen3MoeConfig if experts else Qwen2Config)(
        vocab_size=VOCABULARY if padded else len(AutoTokenizer.from_pretrained(folder)),
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=key_value_heads,
        max_position_embeddings=2048,
        bos_token_id=tokens["<|endoftext|>"],
        eos_token_id=tokens["<|im_end|>"],
        pad_token_id=tokens["<|endoftext|>"],
        tie_word_embeddings=False,
        **(_mixture(experts) if experts else {}),
    )
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def _mixture(experts: int) -> dict[str, object]:
    return {
        "num_experts": experts,
        "num_experts_per_tok": EXPERTS_A_TOKEN,
        "moe_intermediate_size": HIDDEN,
        "norm_topk_prob": True,
        "head_dim": HIDDEN // HEADS,
    }


def obtain(source: str) -> str:
    """Return a local path as an absolute path, and a hub name unchanged. Raise BadInput if `source` is a folder
    without a model."""
    path = Path(source)
    if path.exists():
        if not (path / "config.json").is_file():
            raise BadInput(
                _("--model: expected a folder with a config.json; found {path}, which has none").format(path=path)
            )
        return str(path.resolve())
    if source.startswith((".", "/", "~")):
        raise BadInput(
            _("--model: expected a folder or a hub name; found {source}, which is neither").format(source=source)
        )
    return source
