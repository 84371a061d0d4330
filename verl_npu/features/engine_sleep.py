"""Protection of a vLLM engine's plain tensors, which are neither parameters nor buffers, from level-2 sleep.

Level-2 sleep drops the memory that holds the loaded model. The next weight sync fills the parameters again, and
vllm-ascend saves and restores the buffers. But a tensor that is a plain attribute is lost. For example, the token
dispatcher of a mixture of experts keeps the experts' numbers in a plain attribute. Without these numbers, the engine
generates fluent but incorrect text (verl#7086).
"""

from __future__ import annotations

import bisect
import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..registry.patch import Feature
from ..registry.source.probe import Never, Reads

if TYPE_CHECKING:
    import torch

engine_sleep = Feature(
    "engine_sleep", "Tensors that are neither weights nor buffers survive the deep sleep of an engine."
)

_ALLOCATOR = "vllm_ascend.device_allocator.camem:CaMemAllocator"
_WEIGHTS = "weights"
"""vLLM's tag for the memory that holds the loaded model."""
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
    """vllm-ascend's allocator, which releases its memory while the engine sleeps."""

    pointer_to_data: Mapping[int, _Allocation]


@dataclass(frozen=True, slots=True)
class Kept:
    """The memory of a plain tensor, and the values that it had before the engine slept."""

    memory: torch.Tensor
    """The bytes on the NPU."""
    values: torch.Tensor
    """A copy of the bytes on the host."""


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
    forget_wake_up()
    # A second sleep finds memory that is gone, and nothing to read.
    if _WEIGHTS not in offloaded and not hasattr(allocator, _ASLEEP):
        setattr(allocator, _ASLEEP, [Kept(each, each.cpu()) for each in map(_bytes, find_plain_tensors(allocator))])
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
                each.memory.copy_(each.values)
        delattr(allocator, _ASLEEP)
        setattr(allocator, _RESTORED, asleep)
    return done


def changed_since_wake_up() -> dict[str, torch.Tensor]:
    """Return the current content, as bytes, of the plain tensors that have changed since this process's engine last
    woke up.

    Each key identifies a tensor by the attribute that holds the tensor and the class or module that owns the
    attribute. If the owner is unknown, the key contains the tensor's size.
    """
    import torch

    held: Sequence[Kept] = getattr(_allocator(), _RESTORED, ())
    present = [each.memory.cpu() for each in held]
    # Bytes: NaN is not equal to itself.
    changed = [not torch.equal(now, each.values) for each, now in zip(held, present, strict=True)]
    if not any(changed):
        return {}
    # All get their names, so that a tensor has the same name at each call.
    named = zip(_names([each.memory for each in held]), present, changed, strict=True)
    return {name: now for name, now, differs in named if differs}


def forget_wake_up() -> None:
    """Discard the values that were recorded when the engine woke up. Call this function before the engine computes,
    because the computation may change the values."""
    getattr(_allocator(), "__dict__", {}).pop(_RESTORED, None)


def unprotected() -> list[str]:
    """Return the names of the plain tensors that a level-2 sleep would lose because this feature is not applied. Each
    name is returned once, although many layers may have a tensor with this name."""
    allocator = _allocator()
    # vllm-ascend's own function wraps nothing.
    if allocator is None or hasattr(type(allocator).sleep, "__wrapped__"):
        return []
    names = _names(find_plain_tensors(allocator, saved=("_parameters", "_buffers")))
    return sorted({name.partition(" (")[0] for name in names})


def _allocator() -> Any:
    """Return the allocator of this process's engine, or None if no memory of this process can sleep."""
    module = sys.modules.get(_ALLOCATOR.partition(":")[0])
    return getattr(getattr(module, "CaMemAllocator", None), "instance", None)


def find_plain_tensors(allocator: Allocator, saved: Sequence[str] = ("_parameters",)) -> list[torch.Tensor]:
    """Find the storages in the model's memory that do not belong to a tensor in a module's `saved` dictionaries.
    Return one tensor for each of these storages.

    Buffers are returned, too, because vllm-ascend saves only the buffers of its main model.
    """
    import torch

    spans = sorted(
        (address, address + each.handle[1])
        for address, each in allocator.pointer_to_data.items()
        if each.tag == _WEIGHTS
    )
    # By its type: some objects import a library when they are asked for their class.
    with _all_collectable():
        objects = gc.get_objects()
    # A parameter of no module is lost, too: no sync fills it.
    modules = [each for each in objects if issubclass(type(each), torch.nn.Module)]
    held = [each for module in modules for kind in saved for each in vars(module).get(kind, {}).values()]
    filled = {_storage(each) for each in held if _is_real(each) and each.device.type == "npu"}
    found: dict[int, torch.Tensor] = {}
    for each in objects:
        if _is_real(each) and each.device.type == "npu":
            address = _storage(each)
            at = bisect.bisect(spans, (address, float("inf"))) - 1
            if at >= 0 and address < spans[at][1] and address not in filled:
                found.setdefault(address, each)
    return list(found.values())


@contextmanager
def _all_collectable() -> Iterator[None]:
    """Context manager that makes frozen objects visible to the garbage collector. An engine freezes all objects after
    its start."""
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    try:
        yield
    finally:
        if frozen:
            gc.collect()
            gc.freeze()


def _is_real(one: object) -> bool:
    """Return whether an object is a tensor with memory. A fake tensor, for example, has none."""
    import torch

    return type(one) is torch.Tensor or issubclass(type(one), torch.nn.Parameter)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return all bytes of a tensor's storage, because the tensor may be a view of a part of them."""
    import torch

    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _names(tensors: Sequence[torch.Tensor]) -> list[str]:
    """Return a name for the memory of each tensor, made from the object that holds a tensor with this memory."""
    import torch

    wanted = {_storage(each) for each in tensors}
    with _all_collectable():
        objects = gc.get_objects()
        sharing = [each for each in objects if _is_real(each) and each.is_cpu is False and _storage(each) in wanted]
        # An object that has no dictionary yet refers to its attributes itself.
        holders = gc.get_referrers(*sharing)
        dictionaries = [each for each in holders if type(each) is dict]
        owners = [each for each in (*holders, *gc.get_referrers(*dictionaries)) if _has_attributes(each)]
    at = {id(each): _storage(each) for each in sharing}
    modules = [each for each in objects if issubclass(type(each), torch.nn.Module)]
    attributes = [(each, vars(each)) for each in owners]
    attributes += [(each, vars(each).get("_buffers", {})) for each in modules]
    found: dict[int, str] = {}
    for owner, values in attributes:
        for key, value in values.items():
            if id(value) in at:
                found.setdefault(at[id(value)], f"{getattr(owner, '__name__', type(owner).__qualname__)}.{key}")
    names = [found.get(_storage(each), f"a tensor of {each.untyped_storage().nbytes()} bytes") for each in tensors]
    counts = Counter[str]()
    numbered = []
    for name in names:
        counts[name] += 1
        numbered.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return numbered


def _has_attributes(holder: object) -> bool:
    return hasattr(type(holder), "__dict__") and type(getattr(holder, "__dict__", None)) is dict
