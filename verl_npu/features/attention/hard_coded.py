"""What upstream has hard-coded: imports of flash_attn's padding helpers, and flash attention itself.

A copy of upstream's function is called in which the import or the constant is another one: see `rewriting`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from ...registry.source.named import Key
from ...registry.source.probe import AllOf, AnyOf, Defines, Imported, Imports, Never, Not, Passes, Probe
from ..configuration import Section
from . import padding
from .feature import FLASH_ATTENTION, NPU_MODULE, attention

PADDING = padding.__name__
BERT_PADDING = "flash_attn.bert_padding"
_ISSUE = "https://github.com/volcengine/verl/issues/3561"
Implementation = TypeVar("Implementation", bound=Callable[..., object])
Result = TypeVar("Result")


def _imported(name: str) -> Probe:
    """Return the question whether upstream imports a helper from transformers, as at 796871d7 its workers do all four,
    and at v0.6.1 another module two of them."""
    return Imported("verl", f"{NPU_MODULE}.{name}")


for _helper in (padding.index_first_axis, padding.rearrange, padding.unpad_input, padding.pad_input):
    _name = _helper.__name__
    attention.add(
        f"{NPU_MODULE}:{_name}",
        why="transformers removed the helper from its NPU module in 4.55.2, and upstream imports it from there: "
        f"`cannot import name '{_name}' from '{NPU_MODULE}'`.",
        how="The same function, written in plain torch, is added to that module.",
        link=_ISSUE,
        requires=_imported(_name),
        name=f"add_{_name}",
    )(_helper)


@attention.guard(
    f"{NPU_MODULE}:repeat",
    may_use=(f"{NPU_MODULE}:rearrange",),
    why="Up to 4.55.1 transformers imports `rearrange` and `repeat` from einops only in a process that sees an NPU. "
    "Ray hides all NPUs from actors that asked for none, such as TaskRunner, and the import of upstream's workers "
    f"there ends with `cannot import name 'rearrange' from '{NPU_MODULE}'`.",
    how="verl-npu's rearrange is put into that module before it is executed; einops' own takes its place if it is "
    "imported.",
    link=_ISSUE,
    retired_by=Not(Defines(f"{NPU_MODULE}:repeat")),
    requires=_imported("rearrange"),
)
def provide_rearrange_without_visible_npus() -> None:
    """Put `rearrange` into transformers' NPU module, which is about to be executed."""
    vars(sys.modules[NPU_MODULE]).setdefault("rearrange", padding.rearrange)


def with_our_padding(original: Callable[..., Result], *args: object, **kwargs: object) -> Result:
    """Call a copy of upstream's function, whose body imports the padding helpers from `flash_attn`."""
    from .rewriting import with_import

    return with_import(original, BERT_PADDING, PADDING)(*args, **kwargs)


for _name, _target in {
    "response_log_probs": "verl.utils.torch_functional:log_probs_from_logits_response_rmpad",
    "all_log_probs": "verl.utils.torch_functional:log_probs_from_logits_all_rmpad",
    "vocab_parallel_log_probs": "verl.utils.megatron.tensor_parallel:"
    "vocab_parallel_log_probs_from_logits_response_rmpad",
    "pipeline_shapes": "verl.utils.megatron.pipeline_parallel:compute_transformers_input_shapes",
    "spin_reward_model": "recipe.spin.fsdp_workers:RewardModelWorker._forward_micro_batch",
}.items():
    attention.wrap(
        _target,
        why="The function imports the padding helpers from flash_attn, which does not exist on Ascend: "
        "`No module named 'flash_attn'`.",
        how="A copy of the function is called in which this one import gives verl-npu's padding helpers.",
        link=_ISSUE,
        retired_by=Imports(_target, "verl.utils.attention_utils"),
        requires=Imports(_target, BERT_PADDING),
        name=f"avoid_flash_attn_in_{_name}",
    )(with_our_padding)


@attention.wrap(
    "recipe.prime.prime_fsdp_workers:PRIMERewardModelWorker.init_model",
    why="It imports a module that imports the padding helpers from flash_attn, which does not exist on Ascend: "
    "`No module named 'flash_attn'`.",
    how="That module is imported beforehand, in such a way that this one import gives verl-npu's padding helpers.",
    link=_ISSUE,
    retired_by=Never("the recipe left upstream's repository with the import in place"),
    requires=AllOf(
        Imports("recipe.prime.prime_dp_rm", BERT_PADDING),
        Defines("recipe.prime.prime_fsdp_workers:PRIMERewardModelWorker.init_model"),
    ),
)
def avoid_flash_attn_in_prime_reward_model(
    original: Callable[..., Result], worker: object, *args: object, **kwargs: object
) -> Result:
    """Build the reward model of the PRIME recipe."""
    from .rewriting import import_module

    import_module("recipe.prime.prime_dp_rm", BERT_PADDING, PADDING)
    return original(worker, *args, **kwargs)


_OPTION = "attn_implementation"


def declare_choice(
    target: str,
    source: str = "model.override_config.attn_implementation",
    name: str = "",
    *,
    uses: Sequence[str] = (),
    may_use: Sequence[str] = (),
) -> Callable[[Implementation], Implementation]:
    """Declare the decorated function for `target`, which then takes the implementation from `source`."""
    return attention.wrap(
        target,
        uses=uses,
        may_use=may_use,
        why="flash_attention_2 is hard-coded here, so a model that needs sdpa or eager attention cannot be trained: "
        "what the user configures has no effect.",
        how=f"A copy of the function is called in which the constant is replaced by {source}.",
        link="https://github.com/volcengine/verl/pull/3417",
        retired_by=AnyOf(
            Passes(target, _OPTION, Key(_OPTION), always=True),
            AllOf(Defines(target), Not(Passes(target, _OPTION, FLASH_ATTENTION, to="from_pretrained"))),
        ),
        name=name,
    )


@declare_choice("verl.workers.fsdp_workers:ActorRolloutRefWorker._build_model_optimizer")
def use_configured_attention_for_actor(
    original: Callable[..., Result],
    worker: object,
    model_path: object,
    fsdp_config: object,
    optim_config: object,
    override_model_config: Section | None,
    *args: object,
    **kwargs: object,
) -> Result:
    """Build the actor or the reference model."""
    function = _with_constant(original, _chosen(override_model_config))
    return function(worker, model_path, fsdp_config, optim_config, override_model_config, *args, **kwargs)


def use_configured_attention(original: Callable[..., Result], worker: object, config: Section) -> Result:
    """Build the model of a worker or an engine."""
    return _with_chosen(original, config)(worker, config)


for _name, _target, _section in (
    ("critic", "verl.workers.fsdp_workers:CriticWorker._build_critic_model_optimizer", "critic"),
    ("reward_model", "verl.workers.fsdp_workers:RewardModelWorker._build_model", "reward_model"),
    ("fsdp_engine", "verl.workers.engine.fsdp.engine_impl:FSDPEngine._build_model_optimizer", "critic"),
):
    declare_choice(
        _target,
        name=f"use_configured_attention_for_{_name}",
        uses=(f"verl/trainer/config/ppo_trainer.yaml: {_section}.model",),
    )(use_configured_attention)


@declare_choice(
    "verl.trainer.fsdp_sft_trainer:FSDPSFTTrainer._build_model_optimizer",
    uses=(
        "verl.trainer.fsdp_sft_trainer:FSDPSFTTrainer.config",
        "verl/trainer/config/sft_trainer.yaml: model",
    ),
)
def use_configured_attention_for_sft(original: Callable[..., Result], trainer: Section) -> Result:
    """Build the model of supervised fine-tuning."""
    return _with_chosen(original, trainer.config)(trainer)


@declare_choice(
    "verl.utils.model:load_valuehead_model",
    "the model configuration's own attn_implementation",
    may_use=("transformers.configuration_utils:PretrainedConfig._attn_implementation",),
)
def use_configured_attention_for_value_head(
    original: Callable[..., Result],
    local_path: object,
    torch_dtype: object,
    model_config: object,
    trust_remote_code: object,
) -> Result:
    """Load a model with a value head."""
    chosen = getattr(model_config, "_attn_implementation", None) or FLASH_ATTENTION
    function = _with_constant(original, str(chosen))
    return function(local_path, torch_dtype, model_config, trust_remote_code)


def _with_chosen(original: Callable[..., Result], config: Section) -> Callable[..., Result]:
    return _with_constant(original, _chosen(config.model.get("override_config")))


def _with_constant(original: Callable[..., Result], chosen: str) -> Callable[..., Result]:
    from .rewriting import with_constant

    return with_constant(original, FLASH_ATTENTION, chosen)


def _chosen(override: Section | None) -> str:
    """Return the user's choice in a model's `override_config`, or flash attention if there is none."""
    return str((override.get(_OPTION) if override else None) or FLASH_ATTENTION)
