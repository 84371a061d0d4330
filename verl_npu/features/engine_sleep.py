"""Protection of a vLLM engine's plain tensors, which are neither parameters nor buffers, from sleep of level 2.

Sleep of level 2 drops the memory in which the model was loaded. The next weight sync fills the parameters again, and
vllm-ascend saves and restores the buffers. But a tensor that is a plain attribute is lost. For example, the token
dispatcher of a mixture of experts keeps the experts' numbers in a plain attribute. Without them, the engine answers
fluently but wrongly (verl#7086).
"""

from __future__ import annotations

import bisect
import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..registry.patch import Feature
from ..registry.source.probe import Never, Reads

if TYPE_CHECKING:
    import torch

__all__ = [
    "Kept",
    "changed_since_wake_up",
    "engine_sleep",
    "find_plain_tensors",
    "keep_plain_tensors",
    "restore_plain_tensors",
]

engine_sleep = Feature(
    "engine_sleep", "Tensors that are neither weights nor buffers survive the deep sleep of an engine."
)

_ALLOCATOR = "vllm_ascend.device_allocator.camem:CaMemAllocator"
_WEIGHTS = "weights"
"""The tag that vLLM gives to the memory in which the model was loaded."""
_ASLEEP = "_verl_npu_asleep"
_RESTORED = "_verl_npu_restored"
_WHY = "Sleep of level 2 drops all memory of the model, and vllm-ascend saves named buffers alone. A tensor that is a "
_WHY += "plain attribute comes back with arbitrary values: with expert parallelism the engine answers fluently and "
_WHY += "wrongly."
_LINK = "https://github.com/verl-project/verl/issues/7086"
_RETIRED_BY = Never("a release of vllm-ascend would have to save tensors that are not named buffers")


class _Allocation(Protocol):
    handle: Sequence[int]
    """The device, the size in bytes, the address, and more."""
    tag: str


class Allocator(Protocol):
    """vllm-ascend's allocator, whose memory can sleep."""

    pointer_to_data: Mapping[int, _Allocation]


@dataclass(frozen=True, slots=True)
class Kept:
    """A plain tensor of an engine, and the values that it had before the engine slept."""

    tensor: torch.Tensor
    values: torch.Tensor
    """A copy of the values on the host."""


@engine_sleep.wrap(
    f"{_ALLOCATOR}.sleep",
    why=_WHY,
    how="Before such a sleep the plain tensors in that memory are copied to the host.",
    link=_LINK,
    retired_by=_RETIRED_BY,
    requires=Reads(f"{_ALLOCATOR}.sleep", "pointer_to_data"),
)
def keep_plain_tensors(
    original: Callable[..., object], allocator: Allocator, offload_tags: str | Iterable[str] | None = None
) -> object:
    """Put the memory to sleep. If the sleep would drop the model's values, copy its plain tensors to the host
    first."""
    offloaded = (offload_tags,) if isinstance(offload_tags, str) else tuple(offload_tags or ())
    # A second sleep finds memory that is gone, and nothing to read.
    if _WEIGHTS not in offloaded and not hasattr(allocator, _ASLEEP):
        setattr(allocator, _ASLEEP, [Kept(each, each.cpu()) for each in find_plain_tensors(allocator)])
    return original(allocator, offload_tags)


@engine_sleep.wrap(
    f"{_ALLOCATOR}.wake_up",
    why=_WHY,
    how="As the memory comes back, the plain tensors get the values that they had.",
    link=_LINK,
    retired_by=_RETIRED_BY,
    requires=Reads(f"{_ALLOCATOR}.wake_up", "pointer_to_data"),
)
def restore_plain_tensors(
    original: Callable[..., object], allocator: Allocator, tags: Iterable[str] | None = None
) -> object:
    """Wake up the memory, and copy the saved values back into the plain tensors."""
    import torch

    done = original(allocator, tags)
    asleep: list[Kept] | None = getattr(allocator, _ASLEEP, None)
    if asleep is not None and (tags is None or _WEIGHTS in tags):
        with torch.inference_mode():
            for each in asleep:
                each.tensor.copy_(each.values)
        delattr(allocator, _ASLEEP)
        setattr(allocator, _RESTORED, asleep)
    return done


def changed_since_wake_up() -> list[str]:
    """Return the names of the plain tensors that have changed since this process's engine last woke up.

    A name is the owner's class and the attribute, or the tensor's shape if the owner is unknown.
    """
    import torch

    module = sys.modules.get(_ALLOCATOR.partition(":")[0])
    allocator = getattr(getattr(module, "CaMemAllocator", None), "instance", None)
    restored: Sequence[Kept] = getattr(allocator, _RESTORED, ())
    # Bytes: NaN is not equal to itself.
    changed = [one.tensor for one in restored if not torch.equal(_bytes(one.tensor.cpu()), _bytes(one.values))]
    # The search for names reads the whole heap.
    return _names(changed) if changed else []


def find_plain_tensors(allocator: Allocator) -> list[torch.Tensor]:
    """Return the plain tensors in the model's memory: those that share no storage with a parameter."""
    import torch

    spans = sorted(
        (address, address + each.handle[1])
        for address, each in allocator.pointer_to_data.items()
        if each.tag == _WEIGHTS
    )
    # By its type: some objects import a library when they are asked for their class.
    with _all_collectable():
        tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    on_npu = [each for each in tensors if each.device.type == "npu"]
    filled = {_storage(each) for each in on_npu if isinstance(each, torch.nn.Parameter)}
    found: dict[tuple[object, ...], torch.Tensor] = {}
    for each in on_npu:
        if type(each) is torch.Tensor and each.numel() > 0 and _storage(each) not in filled:
            at = bisect.bisect(spans, (each.data_ptr(), float("inf"))) - 1
            if at >= 0 and each.data_ptr() < spans[at][1]:
                found.setdefault((each.data_ptr(), each.shape, each.stride(), each.dtype), each)
    return list(found.values())


@contextmanager
def _all_collectable() -> Iterator[None]:
    """In this context, make frozen objects visible to the garbage collector. An engine freezes all objects after its
    start."""
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    try:
        yield
    finally:
        if frozen:
            gc.collect()
            gc.freeze()


# weight_sync has a function for this, and lies above this module.
def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.contiguous().view(-1).view(torch.uint8)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _names(tensors: Sequence[torch.Tensor]) -> list[str]:
    """Return a name for each tensor, made from the object that holds it."""
    with _all_collectable():
        # An object that has no dictionary yet refers to its attributes itself.
        holders = gc.get_referrers(*tensors)
        dictionaries = [each for each in holders if type(each) is dict]
        owners = [each for each in (*holders, *gc.get_referrers(*dictionaries)) if _has_attributes(each)]
    found = {id(value): f"{type(one).__qualname__}.{key}" for one in owners for key, value in vars(one).items()}
    names = [found.get(id(each), f"a tensor of shape {tuple(each.shape)}") for each in tensors]
    counts = Counter[str]()
    numbered = []
    for name in names:
        counts[name] += 1
        numbered.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return numbered


def _has_attributes(holder: object) -> bool:
    return hasattr(type(holder), "__dict__") and type(getattr(holder, "__dict__", None)) is dict
