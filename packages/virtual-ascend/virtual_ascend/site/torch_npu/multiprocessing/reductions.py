"""Sends NPU tensors to other processes by handle, without a copy, as torch_npu 2.7.1 does.

The handle is a plain tuple of picklable values in the same order as CUDA's, because programs overwrite its seventh
value, the device. When a tensor is first sent, its memory is moved into shared memory. The sender must keep the tensor
until the receiver has it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

import torch
from torch.multiprocessing import reductions
from virtual_ascend.device.extension import extension

__all__ = ["rebuild_npu_tensor"]

_PHANTOM = b"phantom"  # marks a phantom, instead of the shared memory manager

_shared: dict[
    int, tuple[reductions.StorageWeakRef, tuple[bytes, bytes, int]]
] = {}  # by the storage's address: a weak reference to it, and its handle
_received: dict[
    tuple[bytes, int], reductions.StorageWeakRef
] = {}  # by handle and NPU: a weak reference to the storage


def _share(tensor: torch.Tensor) -> tuple[bytes, bytes, int] | None:
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:
        return None
    known = _shared.get(storage.data_ptr())
    if known is None or known[0].expired():
        if extension().is_phantom(tensor):
            # A phantom shares only its size. By the name, tensors that share a storage also share it in the receiver.
            name = f"{os.getpid()}-{storage.data_ptr()}".encode()
            handle = (_PHANTOM, name, storage.nbytes())
            _shared[storage.data_ptr()] = (reductions.StorageWeakRef(storage), handle)
            return handle
        host = torch.UntypedStorage(storage.nbytes(), device="cpu")
        handle = host._share_filename_cpu_()
        extension().move_storage(tensor.detach(), torch.empty(0, dtype=torch.uint8, device="cpu").set_(host))
        for address in [address for address, (reference, _) in _shared.items() if reference.expired()]:
            del _shared[address]
        known = _shared[storage.data_ptr()] = (reductions.StorageWeakRef(storage), handle)
    return known[1]


def _receive(manager: bytes, name: bytes, size: int, device: int) -> torch.UntypedStorage:
    reference = _received.get((name, device))
    if reference is not None:
        pointer = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
        if pointer is not None:
            return pointer
    if manager == _PHANTOM:
        phantom = torch.empty(size, dtype=torch.uint8, device=f"npu:{device}")
        if not extension().is_phantom(phantom):
            raise RuntimeError(
                f"received a phantom tensor of {size} bytes, which has no values, from a process with a lower "
                "VIRTUAL_ASCEND_PHANTOM. Set the same value in all processes"
            )
        whole: torch.UntypedStorage = phantom.untyped_storage()
        _received[name, device] = reductions.StorageWeakRef(whole)
        return whole
    host = torch.UntypedStorage._new_shared_filename_cpu(manager, name, size)
    ours = extension().npu_alias(torch.empty(0, dtype=torch.uint8, device="cpu").set_(host), device)
    storage: torch.UntypedStorage = ours.untyped_storage()
    _received[name, device] = reductions.StorageWeakRef(storage)
    return storage


def rebuild_npu_tensor(
    tensor_cls: type,
    tensor_size: torch.Size,
    tensor_stride: tuple[int, ...],
    tensor_offset: int,
    storage_cls: type,
    dtype: torch.dtype,
    storage_device: int,
    storage_handle: tuple[bytes, bytes] | None,
    storage_size_bytes: int,
    storage_offset_bytes: int,
    requires_grad: bool,
    ref_counter_handle: bytes | None,
    ref_counter_offset: int,
    event_handle: bytes | None,
    event_sync_required: bool,
) -> torch.Tensor:
    """Return the tensor that another process sent. The tensor is on this process's NPU `storage_device`, and shares
    the memory of the sender's tensor.

    Raises:
        RuntimeError: the sender has released the memory, or the NPU does not exist.
    """
    extension().init()
    extension().check_index(storage_device)
    if storage_handle is None:
        tensor = torch.empty_strided(tensor_size, tensor_stride, dtype=dtype, device=f"npu:{storage_device}")
    else:
        storage = _receive(*storage_handle, storage_size_bytes, storage_device)
        tensor = torch.empty(0, dtype=dtype, device=storage.device)
        tensor.set_(storage, tensor_offset, tensor_size, tensor_stride)
    if tensor_cls is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


def reduce_npu_tensor(tensor: torch.Tensor) -> tuple[Callable[..., torch.Tensor], tuple[object, ...]]:
    """Return the function rebuild_npu_tensor, and the arguments that rebuild this tensor.

    Raises:
        RuntimeError: the tensor is not a leaf of autograd's graph, and requires a gradient.
    """
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not support "
            "crossing process boundaries.  If you just want to transfer the data, call detach() on the tensor before "
            "serializing (e.g., putting it on the queue)."
        )
    torch.npu.synchronize(tensor.device)
    shared = _share(tensor)
    handle, size = (None, 0) if shared is None else (shared[:2], shared[2])
    place = (type(tensor), tensor.size(), tensor.stride(), tensor.storage_offset())
    memory = (type(tensor.untyped_storage()), tensor.dtype, tensor.device.index, handle, size, 0)
    return rebuild_npu_tensor, (*place, *memory, tensor.requires_grad, None, 0, None, False)


def install() -> None:
    """Enable torch.multiprocessing to send NPU tensors."""
    original = reductions.reduce_tensor

    @functools.wraps(original)
    def reduce_tensor(tensor: torch.Tensor) -> tuple[Callable[..., torch.Tensor], tuple[object, ...]]:
        dense = tensor.layout is torch.strided and not tensor.is_nested
        return reduce_npu_tensor(tensor) if tensor.device.type == "npu" and dense else original(tensor)

    reductions.reduce_tensor = reduce_tensor
    reductions.init_reductions()
