"""The padding helpers, at each place that imports them from transformers' NPU module or from `flash_attn`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import TypeVar, cast

from ...registry.apply.code import clone
from ...registry.source.probe import AllOf, AnyOf, Defines, Mentions, Never, Not, Probe
from . import padding
from .exchange import import_module, with_import
from .feature import NPU_MODULE, attention

__all__ = [
    "BERT_PADDING",
    "PADDING",
    "avoid_flash_attn_in_all_log_probs",
    "avoid_flash_attn_in_pipeline_shapes",
    "avoid_flash_attn_in_prime_reward_model",
    "avoid_flash_attn_in_response_log_probs",
    "avoid_flash_attn_in_spin_reward_model",
    "avoid_flash_attn_in_vocab_parallel_log_probs",
    "provide_rearrange_without_visible_npus",
]

PADDING = padding.__name__
BERT_PADDING = "flash_attn.bert_padding"
_ISSUE = "https://github.com/volcengine/verl/issues/3561"

Implementation = TypeVar("Implementation", bound=Callable[..., object])
Result = TypeVar("Result")

# At 796871d7 the workers import all four helpers from transformers, and a few days before v0.6.1 one module did it for
# them. At v0.6.1 another module still imports two of them; it was moved once before it stopped.
_ALL_FOUR = AnyOf(
    Mentions("verl.workers.actor.dp_actor", NPU_MODULE),
    Mentions("verl.utils.attention_utils", NPU_MODULE),
)
_TWO = AnyOf(
    _ALL_FOUR,
    Mentions("verl.workers.roles.utils.padding", NPU_MODULE),
    Mentions("verl.workers.utils.padding", NPU_MODULE),
)


def declare_helper(helper: Callable[..., object], requires: Probe) -> None:
    """Declare that `helper` is added to transformers' NPU module, as the patch `add_<name of the helper>`."""
    name = helper.__name__
    attention.add(
        f"{NPU_MODULE}:{name}",
        why="transformers removed the helper from its NPU module in 4.55.2, and upstream imports it from there: "
        f"`cannot import name '{name}' from '{NPU_MODULE}'`.",
        how="The same function, written in plain torch, is added to that module.",
        link=_ISSUE,
        requires=requires,
    )(clone(cast(FunctionType, helper), name=f"add_{name}"))


declare_helper(padding.index_first_axis, _ALL_FOUR)
declare_helper(padding.rearrange, _ALL_FOUR)
declare_helper(padding.unpad_input, _TWO)
declare_helper(padding.pad_input, _TWO)


@attention.guard(
    f"{NPU_MODULE}:repeat",
    why="Up to 4.55.1 transformers imports `rearrange` and `repeat` from einops only in a process that sees an NPU. "
    "Ray hides all NPUs from actors that asked for none, such as TaskRunner, and the import of upstream's workers "
    f"there ends with `cannot import name 'rearrange' from '{NPU_MODULE}'`.",
    how="verl-npu's rearrange is put into that module before it is executed; einops' own takes its place if it is "
    "imported.",
    link=_ISSUE,
    retired_by=Not(Defines(f"{NPU_MODULE}:repeat")),
    requires=_ALL_FOUR,
)
def provide_rearrange_without_visible_npus() -> None:
    """Put `rearrange` into transformers' NPU module, which is about to be executed."""
    vars(sys.modules[NPU_MODULE]).setdefault("rearrange", padding.rearrange)


def declare(target: str) -> Callable[[Implementation], Implementation]:
    """Declare the decorated function for `target`, whose body imports the padding helpers from `flash_attn`."""
    return attention.wrap(
        target,
        why="The function imports the padding helpers from flash_attn, which does not exist on Ascend: "
        "`No module named 'flash_attn'`.",
        how="A copy of the function is called in which this one import gives verl-npu's padding helpers.",
        link=_ISSUE,
        retired_by=Mentions(target, "verl.utils.attention_utils"),
        requires=Mentions(target, BERT_PADDING),
    )


@declare("verl.utils.torch_functional:log_probs_from_logits_response_rmpad")
def avoid_flash_attn_in_response_log_probs(original: Callable[..., Result], *args: object, **kwargs: object) -> Result:
    """Log probabilities of responses from packed logits."""
    return with_import(original, BERT_PADDING, PADDING)(*args, **kwargs)


@declare("verl.utils.torch_functional:log_probs_from_logits_all_rmpad")
def avoid_flash_attn_in_all_log_probs(original: Callable[..., Result], *args: object, **kwargs: object) -> Result:
    """Log probabilities of whole sequences from packed logits."""
    return with_import(original, BERT_PADDING, PADDING)(*args, **kwargs)


@declare("verl.utils.megatron.tensor_parallel:vocab_parallel_log_probs_from_logits_response_rmpad")
def avoid_flash_attn_in_vocab_parallel_log_probs(
    original: Callable[..., Result], *args: object, **kwargs: object
) -> Result:
    """Log probabilities of responses from packed logits whose vocabulary is split."""
    return with_import(original, BERT_PADDING, PADDING)(*args, **kwargs)


@declare("verl.utils.megatron.pipeline_parallel:compute_transformers_input_shapes")
def avoid_flash_attn_in_pipeline_shapes(original: Callable[..., Result], *args: object, **kwargs: object) -> Result:
    """Shapes of the pipeline's inputs."""
    return with_import(original, BERT_PADDING, PADDING)(*args, **kwargs)


@declare("recipe.spin.fsdp_workers:RewardModelWorker._forward_micro_batch")
def avoid_flash_attn_in_spin_reward_model(original: Callable[..., Result], *args: object, **kwargs: object) -> Result:
    """Rewards of a micro batch in the SPIN recipe."""
    return with_import(original, BERT_PADDING, PADDING)(*args, **kwargs)


@attention.wrap(
    "recipe.prime.prime_fsdp_workers:PRIMERewardModelWorker.init_model",
    why="It imports a module that imports the padding helpers from flash_attn, which does not exist on Ascend: "
    "`No module named 'flash_attn'`.",
    how="That module is imported beforehand, in such a way that this one import gives verl-npu's padding helpers.",
    link=_ISSUE,
    retired_by=Never("the recipe left upstream's repository with the import in place"),
    requires=AllOf(
        Mentions("recipe.prime.prime_dp_rm", BERT_PADDING),
        Defines("recipe.prime.prime_fsdp_workers:PRIMERewardModelWorker.init_model"),
    ),
)
def avoid_flash_attn_in_prime_reward_model(
    original: Callable[..., Result], worker: object, *args: object, **kwargs: object
) -> Result:
    """Build the reward model of the PRIME recipe."""
    import_module("recipe.prime.prime_dp_rm", BERT_PADDING, PADDING)
    return original(worker, *args, **kwargs)
