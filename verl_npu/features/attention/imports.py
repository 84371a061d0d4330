"""The padding helpers for every place that imports them from transformers' NPU module or from `flash_attn`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...registry.patch import Feature
from ...registry.source.probe import AllOf, AnyOf, Defines, Mentions, Never
from . import padding
from .exchange import import_module, with_import
from .feature import NPU_MODULE, attention

__all__ = ["declare"]

_PADDING = padding.__name__
_BERT_PADDING = "flash_attn.bert_padding"
_ISSUE = "https://github.com/volcengine/verl/issues/3561"


def declare(feature: Feature) -> None:
    """Declare the patches of this module on `feature`."""
    # At 796871d7 the workers import all four from transformers; at v0.6.1 one module still imports two of them.
    workers = Mentions("verl.workers.actor.dp_actor", NPU_MODULE)
    anything = AnyOf(workers, Mentions("verl.workers.roles.utils.padding", NPU_MODULE))
    for helper, requires in (
        (padding.index_first_axis, workers),
        (padding.rearrange, workers),
        (padding.unpad_input, anything),
        (padding.pad_input, anything),
    ):
        feature.add(
            f"{NPU_MODULE}:{helper.__name__}",
            why="transformers removed the helper from its NPU module in 4.55.2, and upstream's NPU branches import it",
            how="the same function in plain torch, added to that module",
            link=_ISSUE,
            requires=requires,
        )(helper)
    for target, implementation in (
        ("verl.utils.torch_functional:log_probs_from_logits_response_rmpad", response_log_probs),
        ("verl.utils.torch_functional:log_probs_from_logits_all_rmpad", all_log_probs),
        (
            "verl.utils.megatron.tensor_parallel:vocab_parallel_log_probs_from_logits_response_rmpad",
            vocab_parallel_log_probs,
        ),
        ("verl.utils.megatron.pipeline_parallel:compute_transformers_input_shapes", pipeline_shapes),
        ("recipe.spin.fsdp_workers:RewardModelWorker._forward_micro_batch", spin_rewards),
    ):
        feature.wrap(
            target,
            why="the function imports the padding helpers from flash_attn, which does not exist on Ascend",
            how="the same function, with that one import answered by verl-npu's padding helpers",
            link=_ISSUE,
            retired_by=Mentions(target, "verl.utils.attention_utils"),
            requires=Mentions(target, _BERT_PADDING),
        )(implementation)
    feature.wrap(
        "recipe.prime.prime_fsdp_workers:PRIMERewardModelWorker.init_model",
        why="it imports a module that imports the padding helpers from flash_attn, which does not exist on Ascend",
        how="that module is imported beforehand, with this one import answered by verl-npu's padding helpers",
        link=_ISSUE,
        retired_by=Never("the recipe left upstream's repository with the import in place"),
        requires=AllOf(
            Mentions("recipe.prime.prime_dp_rm", _BERT_PADDING),
            Defines("recipe.prime.prime_fsdp_workers:PRIMERewardModelWorker.init_model"),
        ),
    )(prime_rewards)


def _ours(original: Callable[..., Any]) -> Callable[..., Any]:
    return with_import(original, _BERT_PADDING, _PADDING)


def response_log_probs(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Log probabilities of responses from packed logits."""
    return _ours(original)(*args, **kwargs)


def all_log_probs(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Log probabilities of whole sequences from packed logits."""
    return _ours(original)(*args, **kwargs)


def vocab_parallel_log_probs(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Log probabilities of responses from packed logits whose vocabulary is split."""
    return _ours(original)(*args, **kwargs)


def pipeline_shapes(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Shapes of the pipeline's inputs."""
    return _ours(original)(*args, **kwargs)


def spin_rewards(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Rewards of a micro batch in the SPIN recipe."""
    return _ours(original)(*args, **kwargs)


def prime_rewards(original: Callable[..., Any], worker: Any, *args: Any, **kwargs: Any) -> Any:
    """Build the reward model of the PRIME recipe."""
    import_module("recipe.prime.prime_dp_rm", _BERT_PADDING, _PADDING)
    return original(worker, *args, **kwargs)


declare(attention)
