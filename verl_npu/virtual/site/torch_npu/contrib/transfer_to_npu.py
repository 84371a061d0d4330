"""Importing this turns every `cuda` into `npu`, for every library in the process, for good: what MindSpeed relies on.

As torch_npu.contrib.transfer_to_npu of torch_npu 2.7: `torch.cuda` has the names of `torch.npu`, functions and methods
that are given a CUDA device take the NPU, `nccl` is hccl, `torch.jit.script` leaves functions as they are, and
triton is not there.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.utils._triton
from torch.nn.parallel import DistributedDataParallel

import torch_npu

__all__: list[str] = []

_FACTORIES = (
    "arange as_tensor asarray empty empty_like empty_permuted empty_strided eye from_file full full_like "
    "hamming_window hann_window linspace load logspace ones ones_like rand rand_like randint randint_like randn "
    "randn_like randperm scalar_tensor sparse_coo_tensor tensor tril_indices triu_indices zeros zeros_like"
)
_METHODS = "new_empty new_empty_strided new_full new_ones new_tensor new_zeros to"
_GROUPS = "init_process_group new_group split_group"


def _npu_for(value: Any) -> Any:
    """A device, or what contains one, with npu in the place of cuda; anything else as it is."""
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return "npu" + value.removeprefix("cuda")
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("npu", value.index) if value.index is not None else torch.device("npu")
    return value


def _with_npu(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*map(_npu_for, args), **{name: _npu_for(value) for name, value in kwargs.items()})

    return wrapper


def _with_hccl(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = [_hccl_for(value) for value in args]
        return function(*given, **{name: _hccl_for(value) for name, value in kwargs.items()})

    return wrapper


def _hccl_for(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("nccl", "hccl").replace("cuda:", "npu:")
    return _npu_for(value)


def _wrap(owner: Any, names: Iterable[str], wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    for name in names:
        if hasattr(owner, name):
            setattr(owner, name, wrap(getattr(owner, name)))


def _class_with_npu(original: type) -> type:
    """A class that is made with a CUDA device is made on the NPU; `isinstance` and subclasses keep working."""
    if not getattr(original, "__flags__", 0) & (1 << 10):  # not a base type: it cannot be subclassed
        return original

    class OnNpu(original):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*map(_npu_for, args), **{name: _npu_for(value) for name, value in kwargs.items()})

    OnNpu.__name__, OnNpu.__qualname__, OnNpu.__module__ = original.__name__, original.__name__, original.__module__
    return OnNpu


def _script(function: Any = None, *_args: Any, **_options: Any) -> Any:
    return function if function is not None else (lambda inner: inner)


def _init() -> None:
    overlay = {name: getattr(torch_npu.npu, name) for name in torch_npu.npu.__all__}
    # A device that is given by name is still called cuda.
    overlay = {name: _with_npu(it) if isinstance(it, FunctionType) else it for name, it in overlay.items()}
    overlay = {name: it for name, it in overlay.items() if not isinstance(it, ModuleType)}
    for name, it in overlay.items():
        setattr(torch.cuda, name, it)
    for name in torch_npu.npu.amp.__all__:
        setattr(torch.cuda.amp, name, getattr(torch_npu.npu.amp, name))
    # Megatron takes some functions from where torch.cuda defines them.
    for part in (torch.cuda.random, torch.cuda.memory):
        for name in vars(part).keys() & overlay.keys():
            setattr(part, name, overlay[name])
    _wrap(torch, _FACTORIES.split(), _with_npu)
    _wrap(torch.Tensor, _METHODS.split(), _with_npu)
    _wrap(torch.nn.Module, ["to", "to_empty"], _with_npu)
    _wrap(dist, _GROUPS.split(), _with_hccl)
    _wrap(dist.distributed_c10d, _GROUPS.split(), _with_hccl)
    torch.autocast = torch.amp.autocast_mode.autocast = torch.amp.autocast = _class_with_npu(torch.autocast)
    torch.Tensor.cuda = torch.Tensor.npu
    torch.Tensor.is_cuda = torch.Tensor.is_npu
    torch.nn.Module.cuda = torch.nn.Module.npu
    DistributedDataParallel.__init__ = _with_npu(DistributedDataParallel.__init__)
    dist.Backend.default_device_backend_map.pop("cuda", None)
    torch.jit.script = _script
    torch.utils._triton.has_triton = lambda: False
    torch._utils._get_available_device_type = lambda: "npu"
    warnings.warn("torch.cuda and every CUDA device are the NPU's from here on (transfer_to_npu)", ImportWarning, 2)


_init()
