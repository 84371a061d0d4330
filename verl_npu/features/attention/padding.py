"""flash_attn's padding helpers in plain torch, and the patches that make upstream use them.

Upstream imports the helpers from flash_attn, which does not exist on NPUs, or from transformers' NPU module, which no
longer has them. If upstream imports them inside a function, verl-npu calls a copy of that function that imports
verl-npu's helpers: see `rewriting`.
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
    """Select rows of a tensor: x [tokens, ...], indices [selected] -> [selected, ...]. Differentiable in `x`."""
    return x.index_select(0, indices.reshape(-1))


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Return the tokens of a padded batch that `attention_mask` keeps.

    Equivalent to flash_attn.bert_padding.unpad_input of flash-attn 2.7. The host waits for the device once, because a
    shape depends on the number of kept tokens.

    Args:
        hidden_states: [batch, seqlen, ...].
        attention_mask: [batch, seqlen], where 1 means that the token is kept.
        unused_mask: like `attention_mask`, for tokens that are kept but not used.

    Returns:
        The tokens [total, ...], their indices [total] into batch*seqlen, cu_seqlens int32 [batch + 1], max_seqlen, and
        the numbers of used tokens int32 [batch].
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
    """Return the positions of the `total` tokens that `mask` [batch, seqlen] keeps, as an int64 tensor of shape
    [total]. The positions are indices into the flattened mask [batch*seqlen].

    Equivalent to nonzero, except that nonzero makes the host wait for the number of tokens, which this function
    receives as `total`.
    """
    import torch

    kept = mask.flatten().bool()
    places = torch.arange(kept.numel(), device=mask.device)
    # All dropped tokens go to one extra slot at the end, which is cut off.
    slots = torch.where(kept, torch.cumsum(kept, dim=0) - 1, total)
    return places.new_zeros(total + 1).scatter_(0, slots, places)[:total]


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Copy tokens to their positions in a padded batch, and fill the other positions with zeros. The inverse of
    `unpad_input`.

    hidden_states [total, ...], indices [total] -> [batch, seqlen, ...]. Differentiable in `hidden_states`.
    """
    padded = hidden_states.new_zeros((batch * seqlen, *hidden_states.shape[1:]))
    padded = padded.index_copy(0, indices, hidden_states)
    return padded.unflatten(0, (batch, seqlen))


def rearrange(tensor: Tensor, pattern: str, **axes: int) -> Tensor:
    """Rearrange a tensor as `einops.rearrange` does. Only the two patterns that upstream uses are supported. Raises
    ApplyError for any other pattern."""
    words = " ".join(pattern.split())
    if not axes and words == "b s ... -> (b s) ...":
        return tensor.flatten(0, 1)
    if not axes and words == "c b s ... -> (b s) c ...":
        return tensor.flatten(1, 2).transpose(0, 1)
    raise ApplyError(
        subject="verl-npu's rearrange, which replaces einops.rearrange in upstream",
        expected="one of the two patterns that upstream uses",
        found=repr(pattern) + (f" with {axes}" if axes else ""),
        fix="install einops, and use einops.rearrange for this pattern",
    )


PADDING = __name__
BERT_PADDING = "flash_attn.bert_padding"
_ISSUE = "https://github.com/volcengine/verl/issues/3561"
Result = TypeVar("Result")


def _imported(name: str) -> Probe:
    """Return the probe that asks whether upstream imports a helper from transformers.

    At 796871d7, upstream's workers import all four helpers. At v0.6.1, another module imports two of them.
    """
    return Imported("verl", f"{NPU_MODULE}.{name}")


for _helper in (index_first_axis, rearrange, unpad_input, pad_input):
    _name = _helper.__name__
    attention.add(
        f"{NPU_MODULE}:{_name}",
        why="transformers 4.55.2 removed the helper from its NPU module, but upstream still imports it from there: "
        f"`cannot import name '{_name}' from '{NPU_MODULE}'`.",
        how="We add an equivalent function, written in plain torch, to that module.",
        link=_ISSUE,
        requires=_imported(_name),
        name=f"add_{_name}",
    )(_helper)


@attention.guard(
    f"{NPU_MODULE}:repeat",
    may_use=(f"{NPU_MODULE}:rearrange",),
    why="Up to 4.55.1, transformers imports `rearrange` and `repeat` from einops only in a process that sees an NPU. "
    "Ray hides all NPUs from actors that asked for none, such as TaskRunner. There, the import of upstream's workers "
    f"fails with `cannot import name 'rearrange' from '{NPU_MODULE}'`.",
    how="We put verl-npu's rearrange into that module before the module runs. If the module imports rearrange from "
    "einops, that function replaces ours.",
    link=_ISSUE,
    retired_by=Not(Defines(f"{NPU_MODULE}:repeat")),
    requires=_imported("rearrange"),
)
def provide_rearrange_without_visible_npus() -> None:
    """Put `rearrange` into transformers' NPU module before that module is executed."""
    vars(sys.modules[NPU_MODULE]).setdefault("rearrange", rearrange)


def with_our_padding(original: Callable[..., Result], *args: object, **kwargs: object) -> Result:
    """Call a copy of upstream's function. The copy imports verl-npu's padding helpers instead of those of
    flash_attn."""
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
        how="We call a copy of the function in which this import returns verl-npu's padding helpers.",
        link=_ISSUE,
        retired_by=Imports(_target, "verl.utils.attention_utils"),
        requires=Imports(_target, BERT_PADDING),
        name=f"avoid_flash_attn_in_{_name}",
    )(with_our_padding)


@attention.wrap(
    "recipe.prime.prime_fsdp_workers:PRIMERewardModelWorker.init_model",
    why="The method imports a module that imports the padding helpers from flash_attn. This package does not exist on "
    "Ascend: `No module named 'flash_attn'`.",
    how="We import that module beforehand in such a way that this import returns verl-npu's padding helpers.",
    link=_ISSUE,
    retired_by=Never("upstream removed the recipe from its repository with the import in place"),
    requires=AllOf(
        Imports("recipe.prime.prime_dp_rm", BERT_PADDING),
        Defines("recipe.prime.prime_fsdp_workers:PRIMERewardModelWorker.init_model"),
    ),
)
def avoid_flash_attn_in_prime_reward_model(
    original: Callable[..., Result], worker: object, *args: object, **kwargs: object
) -> Result:
    """Build the reward model of the PRIME recipe so that it uses verl-npu's padding helpers."""
    from .rewriting import import_module

    import_module("recipe.prime.prime_dp_rm", BERT_PADDING, PADDING)
    return original(worker, *args, **kwargs)
