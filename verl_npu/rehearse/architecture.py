"""Which architecture a model's path names, and the sizes of a small one of the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import RehearsalError

__all__ = ["ARCHITECTURES", "VOCABULARY", "Architecture", "architecture_of"]

VOCABULARY = 512
_HIDDEN, _HEADS, _HEAD = 128, 4, 32

_TEXT: Mapping[str, object] = {
    "hidden_size": _HIDDEN,
    "intermediate_size": 2 * _HIDDEN,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
}
_EXPERTS: Mapping[str, object] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": _HIDDEN,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
_HYBRID: Mapping[str, object] = {
    "head_dim": _HEAD,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": _HEAD,
    "linear_value_head_dim": _HEAD,
}
# transformers reads the kinds of the layers, Megatron-Bridge the interval.
_EVERY_SECOND: Mapping[str, object] = {
    "layer_types": ["linear_attention", "full_attention"],
    "full_attention_interval": 2,
}
_SHARED: Mapping[str, object] = {"shared_expert_intermediate_size": _HIDDEN}
# 8 + 4 + 4 make the 16 pairs of a head.
_SECTIONS: Mapping[str, object] = {"rope_type": "default", "type": "default", "mrope_section": [8, 4, 4]}
_LATENT: Mapping[str, object] = {
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": _HEAD,
    "qk_rope_head_dim": 16,
    "v_head_dim": _HEAD,
    "num_key_value_heads": _HEADS,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": _HIDDEN,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
    "rope_scaling": None,
}
_VISION: Mapping[str, object] = {
    "depth": 2,
    "num_heads": 4,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """A family of models, as its small one is made."""

    name: str
    """transformers' model type."""
    pattern: str
    """What a path of it looks like, in lower case."""
    text: Mapping[str, object]
    vision: Mapping[str, object] = field(default_factory=dict)
    layers: int = 2
    """The fewest that have every kind of layer."""
    flat: bool = False
    """Whether published checkpoints have the language model's settings beside those of the whole."""
    fused: bool = False
    """Whether published checkpoints have all experts of a layer in one tensor, as transformers has in memory."""

    @property
    def sees(self) -> bool:
        """Whether it takes images."""
        return bool(self.vision)


_QWEN2_VISION = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "out_hidden_size": _HIDDEN,
    "fullatt_block_indexes": [1],
}
_QWEN3_VISION = {
    **_VISION,
    "patch_size": 16,
    "hidden_size": 64,
    "intermediate_size": 128,
    "out_hidden_size": _HIDDEN,
    "num_position_embeddings": 64,
}

ARCHITECTURES = (
    Architecture(
        "qwen2_5_vl",
        r"qwen2[._-]?5[-_]?vl",
        {**_TEXT, "rope_scaling": _SECTIONS},
        {
            **_VISION,
            "hidden_size": 64,
            "intermediate_size": 128,
            "out_hidden_size": _HIDDEN,
            "fullatt_block_indexes": [1],
        },
        flat=True,
    ),
    Architecture(
        "qwen3_vl_moe",
        r"qwen3[-_]?vl.*a\d+b",
        {**_TEXT, **_EXPERTS, "head_dim": _HEAD, "rope_scaling": {**_SECTIONS, "mrope_interleaved": True}},
        {**_QWEN3_VISION, "deepstack_visual_indexes": [0]},
    ),
    Architecture(
        "qwen3_vl",
        r"qwen3[-_]?vl",
        {**_TEXT, "head_dim": _HEAD, "rope_scaling": {**_SECTIONS, "mrope_interleaved": True}},
        {**_QWEN3_VISION, "deepstack_visual_indexes": [0]},
    ),
    Architecture(
        "qwen3_5_moe",
        r"qwen3[._-]5.*a\d+b",
        {**_TEXT, **_EXPERTS, **_SHARED, **_HYBRID, **_EVERY_SECOND},
        # Published ones name it, though transformers' class does not; Megatron-Bridge reads it.
        {**_QWEN3_VISION, "deepstack_visual_indexes": []},
        fused=True,
    ),
    Architecture(
        "qwen3_5",
        r"qwen3[._-]5",
        {**_TEXT, **_HYBRID, **_EVERY_SECOND},
        {**_QWEN3_VISION, "deepstack_visual_indexes": []},
    ),
    Architecture(
        "qwen3_next",
        r"qwen3[-_]?next",
        {**_TEXT, **_EXPERTS, **_SHARED, **_HYBRID, **_EVERY_SECOND},
    ),
    Architecture("deepseek_v3", r"deepseek[-_]?(v3|r1)|moonlight", {**_TEXT, **_LATENT}),
    Architecture("qwen3_moe", r"qwen3.*(a\d+b|moe)", {**_TEXT, **_EXPERTS, "head_dim": _HEAD}),
    Architecture("qwen3", r"qwen3", {**_TEXT, "head_dim": _HEAD}),
    Architecture("qwen2", r"qwen2|qwq", _TEXT),
    Architecture("llama", r"llama|deepseek-llm|deepscaler|mistral", {**_TEXT, "head_dim": _HEAD}),
)
"""In the order in which they are looked for: the more special first."""


def architecture_of(path: str) -> Architecture:
    """Return the architecture that a model's path names.

    Raises:
        RehearsalError: it names none that is known.
    """
    # The last parts of a path name the model; a folder above may name another.
    for part in reversed([part.lower() for part in re.split(r"[/\\]", path) if part]):
        for each in ARCHITECTURES:
            if re.search(each.pattern, part):
                return each
    raise RehearsalError(
        subject=f"the model {path!r}",
        expected="a path that names its architecture: " + ", ".join(each.name for each in ARCHITECTURES),
        found="none of them",
        fix="say which it is: --architecture NAME",
    )
