"""flash_attn's padding helpers, in plain torch, and where upstream imports them: from flash_attn, which does not exist
here, or from transformers' NPU module, which has lost them.

A copy of a function of upstream's is called in which the import is another one: see `rewriting`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ...errors import ApplyError
from ...registry.source.probe import AllOf, Defines, Imported, Imports, Never, Not, Probe
from . import NPU_MODULE, attention

if TYPE_CHECKING:
    from torch import Tensor


def index_first_axis(x: Tensor, indices: Tensor) -> Tensor:
    """Select rows: x [tokens, ...], indices [selected] -> [selected, ...]. Differentiable in `x`."""
    return x.index_select(0, indices.reshape(-1))


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Take the tokens that `attention_mask` keeps out of a padded batch.

    hidden_states [batch, seqlen, ...], attention_mask and unused_mask [batch, seqlen], 1 = kept ->
    (tokens [total, ...], indices [total] into batch*seqlen, cu_seqlens int32 [batch + 1], max_seqlen, seqlens used
    int32 [batch]). The same as flash_attn.bert_padding.unpad_input of flash-attn 2.7. The host waits for the device
    once, because the number of kept tokens decides a shape.
    """
    import torch

    all_masks = attention_mask if unused_mask is None else attention_mask + unused_mask
    seqlens = all_masks.sum(dim=-1, dtype=torch.int32)
    used_seqlens = seqlens if unused_mask is None else attention_mask.sum(dim=-1, dtype=torch.int32)
    lengths = seqlens.tolist()
    indices = kept_indices(all_masks, sum(lengths))
    cu_seqlens = torch.nn.functional.pad(torch.cumsum(seqlens, dim=0, dtype=torch.int32), (1, 0))
    tokens = hidden_states.flatten(0, 1).index_select(0, indices)
    return tokens, indices, cu_seqlens, max(lengths, default=0), used_seqlens


def kept_indices(mask: Tensor, total: int) -> Tensor:
    """Return the positions of the `total` tokens that `mask` [batch, seqlen] keeps: int64 [total] into batch*seqlen.

    The same as nonzero, for which the host would wait until the device had computed `total`.
    """
    import torch

    kept = mask.flatten().bool()
    places = torch.arange(kept.numel(), device=mask.device)
    # All dropped tokens go to one slot after the last, which is cut off.
    slots = torch.where(kept, torch.cumsum(kept, dim=0) - 1, total)
    return places.new_zeros(total + 1).scatter_(0, slots, places)[:total]


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Put tokens back into a padded batch: [total, ...], indices [total] -> [batch, seqlen, ...], zero elsewhere.

    The inverse of `unpad_input`; differentiable in `hidden_states`.
    """
    padded = hidden_states.new_zeros((batch * seqlen, *hidden_states.shape[1:]))
    padded = padded.index_copy(0, indices, hidden_states)
    return padded.unflatten(0, (batch, seqlen))


def rearrange(tensor: Tensor, pattern: str, **axes: int) -> Tensor:
    """`einops.rearrange` for the two patterns that upstream uses. Raises ApplyError for any other."""
    words = " ".join(pattern.split())
    if not axes and words == "b s ... -> (b s) ...":
        return tensor.flatten(0, 1)
    if not axes and words == "c b s ... -> (b s) c ...":
        return tensor.flatten(1, 2).transpose(0, 1)
    raise ApplyError(
        subject="verl-npu's rearrange, which replaces that of einops for upstream",
        expected="one of the two patterns that upstream uses",
        found=repr(pattern) + (f" with {axes}" if axes else ""),
        fix="install einops and call einops.rearrange itself",
    )


PADDING = __name__
BERT_PADDING = "flash_attn.bert_padding"
_ISSUE = "https://github.com/volcengine/verl/issues/3561"
Result = TypeVar("Result")


def _imported(name: str) -> Probe:
    """Return the question whether upstream imports a helper from transformers, as at 796871d7 its workers do all four,
    and at v0.6.1 another module two of them."""
    return Imported("verl", f"{NPU_MODULE}.{name}")


for _helper in (index_first_axis, rearrange, unpad_input, pad_input):
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
    vars(sys.modules[NPU_MODULE]).setdefault("rearrange", rearrange)


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
