"""Reference implementations of Triton kernels of vLLM and vllm-ascend, for virtual NPUs. Other kernels raise an error.

On virtual NPUs, vLLM finds no Triton with a driver. It then decorates its kernels with a placeholder, and vllm-ascend
avoids Triton wherever it checks for a driver. This module has references for the kernels that are launched without
such a check.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch import Tensor
from virtual_ascend.operators.devices import check_devices

Reference = Callable[..., None]


def launch_references(importing: ModuleType) -> None:
    """Make vLLM's placeholder for Triton (`vllm.triton_utils.importing`) return kernels that run verl-npu's
    references.

    Do nothing if Triton has a device, or if vLLM has no placeholder (before 0.9).
    """
    placeholder = getattr(importing, "TritonPlaceholder", None)
    if placeholder is None or (importing.HAS_TRITON and (_has_device() or not _can_stand_in(importing))):
        return
    # In Ray's workers, CUDA_VISIBLE_DEVICES is empty, and vLLM expects that a GPU appears later.
    importing.HAS_TRITON = False  # type: ignore[attr-defined]  # it is a module of vLLM's
    upstreams = placeholder._dummy_decorator

    @functools.wraps(upstreams)
    def decorator(self: object, name: str) -> Callable[..., Any]:
        return _jit if name == "jit" else upstreams(self, name)

    placeholder._dummy_decorator = decorator


def _can_stand_in(importing: ModuleType) -> bool:
    """Return whether the placeholder has all names that vLLM's own modules import from Triton.

    The placeholder of vLLM 0.11 has no `exp`. Qwen3-Next, which upstream's weight sync imports, then needs a real
    Triton.
    """
    return hasattr(importing.TritonLanguagePlaceholder(), "exp")


def _has_device() -> bool:
    try:
        backends = importlib.import_module("triton.backends").backends
    except ImportError:
        return False
    return any(backend.driver and backend.driver.is_active() for backend in backends.values())


def _jit(function: Callable[..., object] | None = None, **_options: object) -> Any:
    """Stand in for `triton.jit`, with or without options."""
    return _Kernel if function is None else _Kernel(function)


class _Kernel:
    """A kernel: `kernel[grid](...)` runs its reference."""

    def __init__(self, function: Callable[..., object]) -> None:
        functools.update_wrapper(self, function)
        self._name = f"{function.__module__}.{function.__qualname__}"
        self._parameters = inspect.signature(function)

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        return functools.partial(self._launch, grid)

    def __call__(self, *_given: object, **_named: object) -> NoReturn:
        raise RuntimeError(f"{self._name} is a Triton kernel: launch it with a grid instead of calling it")

    def _launch(self, grid: Sequence[int], *given: object, **named: object) -> None:
        reference = reference_of(self._name, list(self._parameters.parameters))
        if reference is None:
            raise NotImplementedError(
                f"virtual-ascend does not implement the Triton kernel {self._name} (VIRTUAL_ASCEND is set)"
            )
        arguments = self._parameters.bind(*given, **named).arguments
        check_devices(self._name, arguments)
        reference(tuple(grid), **arguments)


def reference_of(name: str, found: Sequence[str]) -> Reference | None:
    """Return the reference for a kernel with these parameters, or None if there is no reference.

    Raises:
        NotImplementedError: the reference's parameters differ from the kernel's.
    """
    reference = REFERENCES.get(name)
    if reference is None:
        return None
    _, *expected = inspect.signature(reference).parameters
    if list(found) != expected:
        raise NotImplementedError(
            f"Triton kernel {name}: virtual-ascend has a reference for the parameters {', '.join(expected)}, "
            f"but the kernel in the installed release has the parameters {', '.join(found)}"
        )
    return reference


def _slot_mapping(
    grid: Sequence[int],
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc_ptr: Tensor,
    positions_ptr: Tensor,
    block_table_ptr: Tensor,
    block_table_stride: int,
    block_size: int,
    slot_mapping_ptr: Tensor,
    TOTAL_CP_WORLD_SIZE: int,
    TOTAL_CP_RANK: int,
    CP_KV_CACHE_INTERLEAVE_SIZE: int,
    PAD_ID: int,
    BLOCK_SIZE: int,
) -> None:
    """Compute each token's slot in the paged cache, as vLLM 0.19 and later do in vllm/v1/worker/block_table.py.

    With context parallelism, a block of the table stands for one block on each rank, which are filled in turn in
    pieces of the interleave size. Tokens of other ranks, and the slots from `num_tokens` on, get PAD_ID.

    Shapes: query_start_loc int32 [requests + 1], positions int64 [tokens], block_table int32 [requests, blocks],
    slot_mapping [max_num_tokens]. The grid has one more program than there are requests; the last one pads.

    Raises:
        RuntimeError: a request or a position is out of bounds, where the kernel would silently read other memory.
    """
    requests = grid[0] - 1
    bounds = query_start_loc_ptr[: requests + 1].long()
    if bounds.numel() != requests + 1 or (bounds.diff() < 0).any() or bounds[-1] > positions_ptr.numel():
        raise RuntimeError(
            f"_compute_slot_mapping_kernel: query_start_loc must have {requests + 1} ascending entries up to "
            f"{positions_ptr.numel()}; found {bounds.tolist()}"
        )
    if slot_mapping_ptr.numel() < max(max_num_tokens, int(bounds[-1])):
        raise RuntimeError(
            f"_compute_slot_mapping_kernel: slot_mapping has {slot_mapping_ptr.numel()} slots, which is not "
            f"enough for {max_num_tokens} tokens"
        )
    slot_mapping_ptr[num_tokens:max_num_tokens] = PAD_ID
    tokens = slice(int(bounds[0]), int(bounds[-1]))
    numbers = torch.arange(requests, device=bounds.device).repeat_interleave(bounds.diff())
    positions = positions_ptr[tokens]
    blocks, offsets = positions // (block_size * TOTAL_CP_WORLD_SIZE), positions % (block_size * TOTAL_CP_WORLD_SIZE)
    if blocks.numel() and (blocks.max() >= block_table_stride or blocks.min() < 0):
        raise RuntimeError(
            f"_compute_slot_mapping_kernel: position {int(positions.max())} is outside the {block_table_stride} "
            f"blocks of {block_size} tokens"
        )
    pieces, within = offsets // CP_KV_CACHE_INTERLEAVE_SIZE, offsets % CP_KV_CACHE_INTERLEAVE_SIZE
    local = pieces // TOTAL_CP_WORLD_SIZE * CP_KV_CACHE_INTERLEAVE_SIZE + within
    slots = block_table_ptr[numbers, blocks].long() * block_size + local
    own = pieces % TOTAL_CP_WORLD_SIZE == TOTAL_CP_RANK
    slot_mapping_ptr[tokens] = slots.where(own, PAD_ID).to(slot_mapping_ptr.dtype)


def _ascend_slot_mapping(
    grid: Sequence[int],
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc_ptr: Tensor,
    positions_ptr: Tensor,
    block_table_ptr: Tensor,
    block_table_stride: int,
    block_size: int,
    slot_mapping_ptr: Tensor,
    KV_CACHE_BLOCK_SIZE: int,
    BLOCKS_PER_KV_BLOCK: int,
    TOTAL_CP_WORLD_SIZE: int,
    TOTAL_CP_RANK: int,
    CP_KV_CACHE_INTERLEAVE_SIZE: int,
    PAD_ID: int,
    TILE_BLOCK_SIZE: int,
    BLOCK_TABLE_WINDOW_SIZE: int,
) -> None:
    """Compute the same slots for vllm-ascend 0.26 and later: vllm_ascend/ops/triton/compute_slot_mapping.py.

    Tiles and windows do not change the result.

    Raises:
        NotImplementedError: context parallelism is used, which divides blocks of the cache.
        RuntimeError: as in `_slot_mapping`.
    """
    if TOTAL_CP_WORLD_SIZE != 1:
        raise NotImplementedError(
            "virtual-ascend does not implement vllm-ascend's _compute_slot_mapping_kernel with context parallelism"
        )
    _slot_mapping(
        grid,
        num_tokens,
        max_num_tokens,
        query_start_loc_ptr,
        positions_ptr,
        block_table_ptr,
        block_table_stride,
        block_size,
        slot_mapping_ptr,
        TOTAL_CP_WORLD_SIZE,
        TOTAL_CP_RANK,
        CP_KV_CACHE_INTERLEAVE_SIZE,
        PAD_ID,
        TILE_BLOCK_SIZE,
    )


REFERENCES: Mapping[str, Reference] = {
    "vllm.v1.worker.block_table._compute_slot_mapping_kernel": _slot_mapping,
    "vllm_ascend.ops.triton.compute_slot_mapping._compute_slot_mapping_kernel": _ascend_slot_mapping,
}
"""The references by kernel name. A reference is called with the grid, followed by the kernel's arguments."""
