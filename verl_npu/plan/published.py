"""The sizes of published models, by the names that launch scripts use. A model's own config.json comes first.

From each model's config.json on its publisher's page; the number of parameters that its page names checks them
(tests/plan/test_published.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["PUBLISHED", "Published", "published"]


@dataclass(frozen=True, slots=True)
class Published:
    """One model."""

    name: str
    pattern: str
    """What the last part of a path looks like, in lower case."""
    kind: str
    """transformers' model type."""
    settings: Mapping[str, object]
    billions: float
    """Parameters that its page names."""


_Sizes = tuple[int, int, int, int, int]
"""Width, width of the feed-forward part, layers, heads, key heads."""


def _dense(sizes: _Sizes, tied: bool, words: int) -> dict[str, object]:
    hidden, inner, layers, heads, key_heads = sizes
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "tie_word_embeddings": tied,
        "vocab_size": words,
        "max_position_embeddings": 40960,
    }


def _qwen2(name: str, billions: float, sizes: _Sizes, tied: bool = False, words: int = 152064) -> Published:
    pattern = rf"qwen2[._-]?5-(coder-|math-)?{re.escape(name)}(?!.*vl)"
    return Published(f"Qwen2.5-{name}", pattern, "qwen2", _dense(sizes, tied, words), billions)


def _qwen3(name: str, billions: float, sizes: _Sizes, tied: bool = False) -> Published:
    settings = {**_dense(sizes, tied, 151936), "head_dim": 128}
    return Published(f"Qwen3-{name}", rf"qwen3-{re.escape(name)}(?!-?a\d)", "qwen3", settings, billions)


def _qwen3_experts(name: str, billions: float, sizes: _Sizes) -> Published:
    settings: dict[str, object] = {
        **_dense(sizes, False, 151936),
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": sizes[1] // 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    return Published(f"Qwen3-{name}", rf"qwen3-{re.escape(name.lower())}", "qwen3_moe", settings, billions)


_MOONLIGHT: Mapping[str, object] = {
    **_dense((2048, 11264, 27, 16, 16), False, 163840),
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
}

_QWEN3_VL_8B: Mapping[str, object] = {
    "text_config": {
        **_dense((4096, 12288, 36, 32, 8), False, 151936),
        "head_dim": 128,
        "rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True},
    },
    "vision_config": {
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "patch_size": 16,
        "out_hidden_size": 4096,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [8, 16, 24],
    },
    "tie_word_embeddings": False,
}


def _qwen2_5_vl(name: str, billions: float, sizes: _Sizes, seeing: int, tied: bool = False) -> Published:
    """`seeing`: the width of the feed-forward part of the layers that see."""
    words = 151936 if tied else 152064
    settings: dict[str, object] = {
        "text_config": {
            **_dense(sizes, tied, words),
            "max_position_embeddings": 128000,
            "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [16, 24, 24]},
        },
        "vision_config": {
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": seeing,
            "num_heads": 16,
            "patch_size": 14,
            "window_size": 112,
            "out_hidden_size": sizes[0],
            "fullatt_block_indexes": [7, 15, 23, 31],
        },
        "tie_word_embeddings": tied,
    }
    return Published(f"Qwen2.5-VL-{name}", rf"qwen2[._-]?5-vl-{re.escape(name)}", "qwen2_5_vl", settings, billions)


PUBLISHED = (
    _qwen2("0.5b", 0.49, (896, 4864, 24, 14, 2), tied=True, words=151936),
    _qwen2("1.5b", 1.54, (1536, 8960, 28, 12, 2), tied=True, words=151936),
    _qwen2("3b", 3.09, (2048, 11008, 36, 16, 2), tied=True, words=151936),
    _qwen2("7b", 7.61, (3584, 18944, 28, 28, 4)),
    _qwen2("14b", 14.7, (5120, 13824, 48, 40, 8)),
    _qwen2("32b", 32.5, (5120, 27648, 64, 40, 8)),
    _qwen2("72b", 72.7, (8192, 29568, 80, 64, 8)),
    _qwen3_experts("30B-A3B", 30.5, (2048, 6144, 48, 32, 4)),
    _qwen3_experts("235B-A22B", 235, (4096, 12288, 94, 64, 4)),
    _qwen3("0.6b", 0.6, (1024, 3072, 28, 16, 8), tied=True),
    _qwen3("1.7b", 1.7, (2048, 6144, 28, 16, 8), tied=True),
    _qwen3("4b", 4.0, (2560, 9728, 36, 32, 8), tied=True),
    _qwen3("8b", 8.2, (4096, 12288, 36, 32, 8)),
    _qwen3("14b", 14.8, (5120, 17408, 40, 40, 8)),
    _qwen3("32b", 32.8, (5120, 25600, 64, 64, 8)),
    _qwen2_5_vl("3b", 3.75, (2048, 11008, 36, 16, 2), 3420, tied=True),
    _qwen2_5_vl("7b", 8.29, (3584, 18944, 28, 28, 4), 3420),
    _qwen2_5_vl("32b", 33.5, (5120, 27648, 64, 40, 8), 3456),
    _qwen2_5_vl("72b", 73.4, (8192, 29568, 80, 64, 8), 3456),
    Published("Qwen3-VL-8B", r"qwen3-vl-8b", "qwen3_vl", _QWEN3_VL_8B, 8.77),
    Published("Moonlight-16B-A3B", r"moonlight-16b", "deepseek_v3", _MOONLIGHT, 16.0),
)


def published(path: str) -> Published | None:
    """Return the model that the last parts of a path name; None if it is none of them."""
    for part in reversed([part.lower().replace("_", "-") for part in re.split(r"[/\\]", path) if part]):
        for each in PUBLISHED:
            if re.search(each.pattern, part):
                return each
    return None
