"""A token limit for the micro-batches of a dynamic batch, if the user requests the limit.

Upstream's function still counts the tokens, agrees with the other ranks on a number of micro-batches, sorts them, and
cuts them out of the batch. The patches change only two things: they set a minimum number of micro-batches, and they
decide how to distribute the sequences. So the ranks run exactly upstream's collectives, in upstream's order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from ... import environment, reporting
from ...registry.patch import Feature
from ...registry.source.probe import AllOf, Defines, Raises
from ...registry.state import LIVE, State

if TYPE_CHECKING:
    from .packing import Batch, Demand

_MODULE = "verl.utils.seqlen_balancing"
_REARRANGE = f"{_MODULE}:rearrange_micro_batches"
BOUNDED_UPSTREAM = Raises(_REARRANGE, "ValueError", when="max_token_len")
"""A probe that asks whether upstream has its own limit, as at v0.9.1. There, verl adds micro-batches until all are
small enough, or raises an error."""
micro_batches = Feature(
    "micro_batches", "With VERL_NPU_TOKEN_BUDGET=1, no micro-batch of a dynamic batch exceeds its token budget."
)


_ROUND_UP = f"{_MODULE}:roundup_divisible"
_PARTITION = f"{_MODULE}:get_seqlen_balanced_partitions"
_WHY = (
    "Upstream splits a dynamic batch into as many micro-batches as its tokens divided by max_token_len, and balances "
)
_WHY += "work instead of tokens. Some hold up to 1.7 times max_token_len, and training ends with `NPU out of memory`."
_LINK = "https://github.com/verl-project/verl/pull/7553"
_HAS_FUNCTIONS = AllOf(Defines(_REARRANGE), Defines(_ROUND_UP), Defines(_PARTITION))
_demand: ContextVar[Demand | None] = ContextVar("demand", default=None)
"""The demand of the call of rearrange_micro_batches that is running now."""
_calls: list[object] = []
"""One entry for each running call of rearrange_micro_batches. We check it first, because torch.compile cannot trace
`_demand`."""
MicroBatches = TypeVar("MicroBatches")


@micro_batches.wrap(
    _REARRANGE,
    why=_WHY,
    how="With VERL_NPU_TOKEN_BUDGET=1, we tell upstream how many micro-batches first-fit-decreasing needs, and check "
    "its result.",
    link=_LINK,
    retired_by=BOUNDED_UPSTREAM,
    requires=_HAS_FUNCTIONS,
)
def keep_token_budget(
    original: Callable[..., tuple[MicroBatches, list[list[int]]]], *args: object, **kwargs: object
) -> tuple[MicroBatches, list[list[int]]]:
    """Split a batch into micro-batches. If the user requested a token limit, each micro-batch has at most
    `max_token_len` tokens.

    If a sequence on one rank is too long, JobSettingError is raised on all ranks that must use the same number of
    micro-batches.
    """
    if not environment.TOKEN_BUDGET.read():
        return original(*args, **kwargs)
    from .packing import Demand

    call = inspect.signature(original).bind(*args, **kwargs)
    call.apply_defaults()
    asked = call.arguments
    batch: Batch = asked["batch"]
    demand = Demand.of(batch, asked["max_token_len"], asked.get("force_group_size", 1))
    if demand is None:
        return original(*args, **kwargs)
    asked["max_token_len"] = demand.allowed
    asked["min_num_micro_batch"] = max(demand.least, asked["min_num_micro_batch"] or 0)
    # With a divisor, upstream calls its rounding function with the number that the ranks agreed on.
    asked["num_batches_divided_by"] = asked["num_batches_divided_by"] or 1
    if asked["same_micro_num_in_dp"] and asked["dp_group"] is None:
        asked["dp_group"] = _world_group()
    token = _demand.set(demand)
    _calls.append(token)
    try:
        split, indices = original(*call.args, **call.kwargs)
    finally:
        _calls.remove(token)
        _demand.reset(token)
    demand.check_result(indices)
    return split, indices


@micro_batches.wrap(
    _ROUND_UP,
    why="A rank that finds a sequence longer than max_token_len fails with an AssertionError, and the other ranks "
    "wait for it until the process group's timeout.",
    how="With VERL_NPU_TOKEN_BUDGET=1, such a rank puts a mark into the number on which the ranks agree. All ranks "
    "find the mark when upstream rounds the number up, and raise an error that names the length and the budget.",
    link=_LINK,
    retired_by=BOUNDED_UPSTREAM,
    requires=_HAS_FUNCTIONS,
)
def agree_on_a_number(original: Callable[[int, int], int], a: int, b: int) -> int:
    """Round a number of micro-batches `a` up to a multiple of `b`. Raises JobSettingError if a rank cannot create that
    number of micro-batches."""
    count = original(a, b)
    demand = _demand.get() if _calls else None
    if demand is not None:
        demand.check_agreed(a, count)
    return count


@micro_batches.wrap(
    _PARTITION,
    why=_WHY,
    how="With VERL_NPU_TOKEN_BUDGET=1, rearrange_micro_batches gets a partition that is within the budget and "
    "balances work. All other callers get upstream's partition.",
    link=_LINK,
    retired_by=BOUNDED_UPSTREAM,
    requires=_HAS_FUNCTIONS,
    may_skip=True,
)
def split_within_budget(
    original: Callable[..., list[list[int]]], seqlen_list: Sequence[int], k_partitions: int, equal_size: bool
) -> list[list[int]]:
    """Return `k_partitions` lists of indices into `seqlen_list`. The lengths in each list add up to about the same
    sum."""
    demand = _demand.get() if _calls else None
    if demand is None:
        return original(seqlen_list, k_partitions, equal_size)
    # At v0.6.1 this is a tensor: copy it from the device once, and not once for each number.
    weights = seqlen_list.tolist() if hasattr(seqlen_list, "tolist") else seqlen_list
    return demand.split(k_partitions, [int(weight) for weight in weights])


def _world_group() -> object:
    """Return the group of all ranks. Up to v0.7.0, upstream uses this group by default.

    From v0.7.1 on, ranks without a group do not agree on a number. The FSDP workers of v0.7.1 pass no group. If the
    ranks' numbers differ, they wait for each other forever (https://github.com/verl-project/verl/issues/6176).
    """
    from torch import distributed

    return distributed.group.WORLD if distributed.is_initialized() else None


_REASONS = {
    State.NATIVE: "this verl version limits its micro-batches itself",
    State.ABSENT: "this verl version does not split batches with the functions that verl-npu patches",
}


def warn_if_none(state: State | None) -> None:
    """If VERL_NPU_TOKEN_BUDGET is set and the feature is not active, warn that the variable has no effect."""
    if state is None or state in LIVE or not environment.TOKEN_BUDGET.read():
        return
    reason = _REASONS.get(state, "its micro-batches may exceed their token budget")
    reporting.warn(f"{environment.TOKEN_BUDGET.name}=1 has no effect: the feature micro_batches is {state}; {reason}")
