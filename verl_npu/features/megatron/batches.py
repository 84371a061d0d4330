"""Patches for early versions of the Megatron workers. They keep a batch on the host, and move one micro-batch at a
time.

verl-npu passes an empty batch to upstream: it has the keys and sizes of the real batch, but its tensors have no
elements. Upstream moves the empty batch to the NPU. The real batch stays on the host until the actor splits it into
micro-batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from ...registry.source.probe import AllOf, Calls, Defines
from . import over_megatron

if TYPE_CHECKING:
    import torch

Result = TypeVar("Result")
HELD = "_verl_npu_held"
"""The attribute of an empty batch that holds the real batch."""
_BROADCAST_BYTES = 32 << 20
"""The maximum number of bytes in one broadcast."""
_WORKER = "verl.workers.megatron_workers:ActorRolloutRefWorker"
_ACTOR = "verl.workers.actor.megatron_actor:MegatronPPOActor"
_COMPUTE = f"{_ACTOR}.forward_backward_batch"
_MINI_BATCHES = f"{_ACTOR}.make_minibatch_iterator"
_BROADCAST = "verl.utils.torch_functional:broadcast_dict_tensor"
_MICRO_BATCHES = "verl.utils.megatron.pipeline_parallel:make_batch_generator"
_BATCH = ("verl.protocol:DataProto.batch",)
_DEVICE = "verl.utils.device:get_device_name()"
_STEPS = ("compute_log_prob", "compute_ref_log_prob", "update_actor")
_WHY = (
    "Upstream moves a rank's share of a whole step to the NPU, and keeps it there while it computes log-probabilities "
    "and updates the actor. With long answers, training ends with `NPU out of memory`: 4096 sequences of 35840 tokens "
    "take 9 GB."
)
_HOW = "The batch stays on the host, and each micro-batch moves to the NPU when its forward pass begins."
_LINK = "https://github.com/volcengine/verl/pull/3106"
_NATIVE = Calls(_COMPUTE, "get_device_id")
_HAS_FUNCTIONS = AllOf(
    *map(Defines, (_COMPUTE, _MINI_BATCHES, _BROADCAST, _MICRO_BATCHES, *(f"{_WORKER}.{step}" for step in _STEPS)))
)

# Upstream computes with one batch at a time. A critic's batch is not held on the host.
_computed: ContextVar[Any] = ContextVar("_computed", default=None)


def hold_the_batch(original: Callable[..., Result], worker: object, data: Any) -> Result:
    """Run a worker's step with a placeholder for the batch. The placeholder has no elements and only refers to the
    real batch, so that upstream moves no elements to the NPU."""
    return original(worker, _without_elements(data))


for _step in _STEPS:
    over_megatron.wrap(
        f"{_WORKER}.{_step}",
        uses=_BATCH,
        why=_WHY,
        how=_HOW,
        link=_LINK,
        retired_by=_NATIVE,
        requires=_HAS_FUNCTIONS,
        name=f"hold_the_batch_of_{_step}",
    )(hold_the_batch)


@over_megatron.wrap(
    _MINI_BATCHES, uses=_BATCH, why=_WHY, how=_HOW, link=_LINK, retired_by=_NATIVE, requires=_HAS_FUNCTIONS
)
def keep_mini_batches_on_the_host(original: Callable[..., Iterable[Any]], actor: object, data: Any) -> Iterator[Any]:
    """Return a placeholder for each mini-batch: a DataProto without elements that refers to the real mini-batch on
    the host."""
    return map(_without_elements, original(actor, getattr(data, HELD, data)))


@over_megatron.wrap(_COMPUTE, why=_WHY, how=_HOW, link=_LINK, retired_by=_NATIVE, requires=_HAS_FUNCTIONS)
def take_the_held_batch(
    original: Callable[..., Result], actor: object, data: Any, *args: object, **kwargs: object
) -> Result:
    """Compute with the real batch that the placeholder `data` holds, or with `data` itself if it is not a
    placeholder."""
    held = getattr(data, HELD, None)
    if held is None:
        return original(actor, data, *args, **kwargs)
    before = _computed.set(held)
    try:
        return original(actor, held, *args, **kwargs)
    finally:
        _computed.reset(before)


@over_megatron.wrap(
    _BROADCAST,
    uses=(_DEVICE,),
    why=_WHY,
    how=_HOW,
    link=_LINK,
    retired_by=_NATIVE,
    requires=_HAS_FUNCTIONS,
    may_skip=True,
)
def broadcast_through_the_npu(original: Callable[..., None], tensors: Any, src: int, group: Any) -> None:
    """Broadcast a batch. A batch on the host is sent through the NPU in pieces, because HCCL cannot read host
    memory."""
    from torch import distributed

    held = _computed.get()
    if held is None or tensors is not held.batch:
        return original(tensors, src, group)
    if distributed.get_world_size(group) > 1:
        for key in tensors.sorted_keys:
            _broadcast(tensors[key], src, group)
    return None


@over_megatron.wrap(
    _MICRO_BATCHES, uses=(_DEVICE,), why=_WHY, how=_HOW, link=_LINK, retired_by=_NATIVE, requires=_HAS_FUNCTIONS
)
def move_micro_batches(original: Callable[..., Any], batches: Any, vpp_size: int) -> Any:
    """Return an iterator over micro-batches, or one iterator for each model chunk. If a micro-batch is still on the
    host, the iterator moves the micro-batch to the NPU."""
    made = original(batches, vpp_size)
    if _computed.get() is None:
        return made
    return [_moved(each) for each in made] if isinstance(made, list) else _moved(made)


def _without_elements(data: Any) -> Any:
    """Return an empty DataProto that holds `data`: it has the same keys, and tensors [..., 0] instead of [...].

    Both share `meta_info`, so that upstream's changes to it reach `data`.
    """
    empty = dataclasses.replace(data, batch=data.batch.apply(lambda tensor: tensor.new_empty((*tensor.shape, 0))))
    setattr(empty, HELD, data)
    return empty


def _broadcast(tensor: torch.Tensor, src: int, group: Any) -> None:
    """Broadcast a host tensor [rows, ...], a few rows at a time."""
    from torch import distributed

    row = tensor[:1].numel() * tensor.element_size()
    for rows in tensor.split(max(_BROADCAST_BYTES // max(row, 1), 1)):
        moved = rows.to(_device()).contiguous()
        distributed.broadcast(moved, src=src, group=group, async_op=False)
        rows.copy_(moved)


def _moved(batches: Iterable[Any]) -> Iterator[Any]:
    device = _device()
    return (batch.to(device) for batch in batches)


def _device() -> str:
    from verl.utils.device import get_device_name

    name: str = get_device_name()
    return name
