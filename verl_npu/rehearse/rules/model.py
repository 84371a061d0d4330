"""The model, its shape where settings repeat it, the data, and the reward."""

from __future__ import annotations

from collections.abc import Mapping

from ..settings import Settings
from .base import Rule, Scene

__all__ = ["DATA", "DIST_CHECKPOINT", "MODEL", "REWARD", "SHAPES"]

_MODELS = (
    r"actor_rollout_ref\.model\.(path|hf_config_path|tokenizer_path)"
    r"|critic\.model\.(path|hf_config_path|tokenizer_path)"
    r"|model\.(path|partial_pretrain|hf_config_path|tokenizer_path)"
    r"|(reward_model|reward\.reward_model)\.(model\.(path|input_tokenizer)|model_path)"
    r"|data\.tokenizer"
    r"|distillation\.teacher_models\..*\.model_path"
    r"|actor_rollout_ref\.(actor|ref)\.mindspeed\.llm_kwargs\.\w*(path|model)"
)
_REWARDS = ("custom_reward_function", "reward.custom_reward_function")


def _model(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    changed: dict[str, object] = {
        key: str(scene.model) for key in script.matching(_MODELS) if script.get(key) not in (None, {}, "")
    }
    # Nothing that the hub would be asked for.
    for key in script.ending("lora_adapter_path", "adapter_path"):
        if script.get(key):
            changed[key] = None
    return changed


def _shapes(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    """Values of the full model that the script gives once more; the small one has others."""
    import json

    config = json.loads((scene.model / "config.json").read_text())
    text = config.get("text_config", config)
    own = {
        "num_query_groups": text.get("num_key_value_heads"),
        "num_attention_heads": text.get("num_attention_heads"),
        "num_layers": text.get("num_hidden_layers"),
        "hidden_size": text.get("hidden_size"),
        "num_experts": text.get("num_experts", text.get("n_routed_experts")),
        "num_moe_experts": text.get("num_experts", text.get("n_routed_experts")),
        "moe_router_topk": text.get("num_experts_per_tok"),
        "qk_head_dim": text.get("qk_nope_head_dim"),
        "qk_nope_head_dim": text.get("qk_nope_head_dim"),
        "qk_rope_head_dim": text.get("qk_rope_head_dim"),
        "qk_pos_emb_head_dim": text.get("qk_rope_head_dim"),
        "v_head_dim": text.get("v_head_dim"),
        "q_lora_rank": text.get("q_lora_rank"),
        "kv_lora_rank": text.get("kv_lora_rank"),
        "moe_router_num_groups": text.get("n_group"),
        "moe_router_group_topk": text.get("topk_group"),
        "kv_channels": text.get("head_dim"),
    }
    names = "|".join(own)
    changed: dict[str, object] = {}
    for key in script.matching(rf".*(override_transformer_config|mcore_kwargs)\.({names})"):
        value = own[key.rpartition(".")[2]]
        if script.get(key) is not None and value is not None:
            changed[key] = value
    return changed


def _dist_checkpoint(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    changed: dict[str, object] = {}
    for key in script.ending("use_dist_checkpointing"):
        if not script.truth(key):
            continue
        if scene.checkpoint is None:
            changed[key] = False
            # Upstream's own loader knows no experts.
            bridge = key.replace("use_dist_checkpointing", "use_mbridge")
            changed |= {bridge: True} if bridge in script else {}
        else:
            changed[key.replace("use_dist_checkpointing", "dist_checkpointing_path")] = str(scene.checkpoint)
    return changed


def _data(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    changed: dict[str, object] = {"data.train_files": str(scene.train)}
    if script.get("data.val_files") is not None:
        changed["data.val_files"] = str(scene.test)
    for key in ("data.train_max_samples", "data.val_max_samples"):
        if script.whole(key) > 0:
            changed[key] = -1
    return changed


def _reward(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    if "algorithm.adv_estimator" not in script:
        return {}
    for section in _REWARDS:
        if f"{section}.path" in script:
            return {f"{section}.path": str(scene.reward), f"{section}.name": "grade"}
    return {}


MODEL = Rule(
    "model",
    "A random model of the same architecture with two layers or so. Its memory and numbers are not shown.",
    _model,
)
SHAPES = Rule("shapes", "The script repeats sizes of the full model; the small one has its own.", _shapes)
DIST_CHECKPOINT = Rule(
    "distributed checkpoint",
    "The small model is converted by the tree's own converter. If that cannot be, mbridge loads the safetensors, and "
    "loading a distributed checkpoint is not shown.",
    _dist_checkpoint,
)
DATA = Rule("data", "Generated questions in the columns that the script reads.", _data)
REWARD = Rule(
    "reward",
    "A random model never answers right, and equal rewards train nothing: a graded reward takes the place of the "
    "script's, which is not shown.",
    _reward,
)
