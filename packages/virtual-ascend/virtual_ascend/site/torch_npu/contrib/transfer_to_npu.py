"""Importing this module turns every `cuda` in the process into `npu`. As on a real NPU, this is permanent and applies
to every library.

As in torch_npu 2.7.1, it changes the functions of `torch.cuda`; devices named `cuda` (and numbers, in `.to`) in the
calls listed below; `Tensor.cuda`, `Tensor.is_cuda`, `Module.cuda`; the backend `nccl`; and the profiler. It turns
`torch.jit.script` and triton off. When transformers, accelerate, peft, and trl check for CUDA, they still find none.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Iterable
from types import ModuleType

import torch
import torch._utils
import torch.distributed
import torch.distributed.checkpoint.filesystem
import torch.distributed.device_mesh
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.utils._device
import torch.utils._triton

import torch_npu

__all__: list[str] = []


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_FACTORIES = _names(
    "_cudnn_init_dropout_state _empty_affine_quantized _empty_per_channel_affine_quantized _pin_memory "
    "_sparse_coo_tensor_unsafe _sparse_csr_tensor_unsafe arange as_tensor bartlett_window blackman_window empty "
    "empty_like empty_quantized empty_strided eye from_file frombuffer full full_like get_device_module "
    "hamming_window hann_window kaiser_window linspace load logspace normal ones ones_like rand rand_like "
    "randint randint_like randn randn_like randperm range scalar_tensor set_default_device sparse_compressed_tensor "
    "sparse_coo_tensor sparse_csr_tensor tensor tril_indices triu_indices zeros zeros_like"
)
_TENSOR = _names("new_empty new_empty_strided new_full new_ones new_tensor new_zeros pin_memory to")
_MODULE = ("to", "to_empty")
_CUDA = _names(
    "caching_allocator_alloc can_device_access_peer current_stream default_stream get_device_capability "
    "get_device_name get_device_properties max_memory_allocated max_memory_reserved mem_get_info memory_allocated "
    "memory_reserved memory_stats memory_summary reset_max_memory_allocated reset_max_memory_cached "
    "reset_peak_memory_stats set_device set_per_process_memory_fraction synchronize utilization"
)
_KEYWORDS = ("device", "device_type", "map_location", "device_id")

# The functions that check for CUDA and must still find none.
_BLIND = (
    "transformers.training_args:TrainingArguments.__post_init__",
    "transformers.trainer:Trainer._load_rng_state",
    "transformers.trainer:Trainer._save_rng_state",
    "transformers.trainer_utils:TrainerMemoryTracker.start",
    "transformers.utils.import_utils:is_torch_cuda_available",
    "transformers.utils.import_utils:is_mamba_ssm_available",
    "transformers.utils.import_utils:is_causal_conv1d_available",
    "transformers.utils.import_utils:is_torch_bf16_gpu_available",
    "transformers.utils.import_utils:is_torch_tf32_available",
    "transformers.utils.import_utils:is_bitsandbytes_available",
    "transformers.utils.import_utils:is_flash_attn_2_available",
    "trl.import_utils:is_bitsandbytes_available",
    "trl.trainer.utils:get_kbit_device_map",
    "peft.utils.other:infer_device",
    "accelerate.utils.modeling:get_max_memory",
    "accelerate.utils.imports:is_cuda_available",
    "accelerate.state:PartialState._prepare_backend",
)

_asks_for_cuda = torch.cuda.is_available

Function = Callable[..., object]


def _turned(value: object, numbers: bool) -> object:
    if isinstance(value, str):
        return value.replace("cuda", "npu")
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("npu") if value.index is None else torch.device("npu", value.index)
    if isinstance(value, dict):
        names = {key: item if isinstance(item, torch.device) else _turned(item, False) for key, item in value.items()}
        return {_turned(key, False): item for key, item in names.items()}
    if numbers and isinstance(value, int) and not isinstance(value, bool):
        return f"npu:{value}"
    return value


def _turning(function: Function) -> Function:
    numbers = function.__name__ in ("to", "to_empty")

    @functools.wraps(function)
    def call(*args: object, **options: object) -> object:
        for keyword in _KEYWORDS:
            if options.get(keyword) is not None:
                options[keyword] = _turned(options[keyword], numbers=True)
        return function(*(_turned(value, numbers) for value in args), **options)

    return call


def _turn(owner: object, names: Iterable[str]) -> None:
    for name in names:
        if (function := getattr(owner, name, None)) is not None:
            setattr(owner, name, _turning(function))


def _with_hccl(function: Function) -> Function:
    def turned(value: object) -> object:
        return value.replace("nccl", "hccl") if isinstance(value, str) else value

    @functools.wraps(function)
    def call(*args: object, **options: object) -> object:
        if "backend" in options:
            options["backend"] = turned(options["backend"])
        return function(*map(turned, args), **options)

    return call


def _without_cuda(function: Function) -> Function:
    @functools.wraps(function)
    def call(*args: object, **options: object) -> object:
        turned = torch.cuda.is_available
        torch.cuda.is_available = _asks_for_cuda
        try:
            return function(*args, **options)
        finally:
            torch.cuda.is_available = turned

    return call


class _Generator(torch.Generator):  # type: ignore[misc]  # torch carries no types here
    def __new__(cls, device: object = "cpu") -> _Generator:
        made: _Generator = super().__new__(cls, _turned(device, numbers=True))
        return made


class _Event(torch.Event):  # type: ignore[misc]  # torch carries no types here
    def __new__(cls, *args: object, **options: object) -> _Event:
        if options.get("device") is not None:
            options["device"] = _turned(options["device"], numbers=True)
        made: _Event = super().__new__(cls, *(_turned(value, numbers=False) for value in args), **options)
        return made


def _overlay(target: ModuleType, source: ModuleType) -> None:
    for name in dir(source):
        value, old = getattr(source, name), getattr(target, name, None)
        if isinstance(value, ModuleType) and isinstance(old, ModuleType):
            if old.__name__.startswith(target.__name__):  # a submodule of its own, which others import by name
                _overlay(old, value)
        elif not name.startswith("__"):
            setattr(target, name, value)


def _turn_cuda() -> None:
    npu = torch_npu.npu
    _overlay(torch.cuda, npu)
    _turn(torch.cuda, _CUDA)
    torch.cuda.device.__init__ = _turning(torch.cuda.device.__init__)
    torch.cuda.CUDAGraph = npu.NPUGraph
    # torch_npu does so too, because NPUs have no fp64.
    torch.cuda.DoubleTensor = npu.FloatTensor


def _turn_torch() -> None:
    _turn(torch, _FACTORIES)
    _turn(torch.Tensor, _TENSOR)
    _turn(torch.nn.Module, _MODULE)
    _turn(torch.fft, ("fftfreq", "rfftfreq"))
    torch.UntypedStorage.__new__ = _turning(torch.UntypedStorage.__new__)
    torch.Generator = _Generator
    torch.Event = _Event
    for owner in (
        torch.amp.autocast_mode.autocast,
        torch.utils._device.DeviceContext,
        torch.nn.parallel.DistributedDataParallel,
    ):
        owner.__init__ = _turning(owner.__init__)
    torch.Tensor.cuda = torch.Tensor.npu
    torch.Tensor.is_cuda = torch.Tensor.is_npu
    torch.nn.Module.cuda = torch.nn.Module.npu
    torch.profiler.profile = torch_npu.profiler.profile
    torch.profiler.tensorboard_trace_handler = torch_npu.profiler.tensorboard_trace_handler


def _turn_distributed() -> None:
    distributed = torch.distributed
    distributed.init_process_group = _with_hccl(distributed.init_process_group)
    distributed.is_nccl_available = distributed.is_hccl_available
    distributed.distributed_c10d._new_group_with_tag = _with_hccl(distributed.distributed_c10d._new_group_with_tag)
    distributed.Backend.default_device_backend_map.pop("cuda", None)
    _turn(distributed.ProcessGroup, ("_get_backend",))
    distributed.device_mesh.init_device_mesh = _turning(distributed.device_mesh.init_device_mesh)
    distributed.init_device_mesh = distributed.device_mesh.init_device_mesh
    for owner in (
        distributed.fsdp.FullyShardedDataParallel,
        distributed.device_mesh.DeviceMesh,
        distributed.pipelining.PipelineStage,
    ):
        owner.__init__ = _turning(owner.__init__)


def _turn_off() -> None:
    warnings.warn(
        "torch.jit.script and torch.jit.script_method will be disabled by transfer_to_npu, which currently does not "
        "support them, if you need to enable them, please do not use transfer_to_npu.",
        RuntimeWarning,
        stacklevel=2,
    )
    torch.jit.script = lambda obj, *_args, **_options: obj
    torch.jit.script_method = lambda function: function
    torch.utils._triton.has_triton = lambda: False
    torch._utils._get_available_device_type = lambda: "npu" if torch.npu.is_available() else None


def _blind() -> None:
    for name in _BLIND:
        module, _, path = name.partition(":")
        *owners, attribute = path.split(".")
        try:
            owner: object = functools.reduce(getattr, owners, importlib.import_module(module))
            function = getattr(owner, attribute)
        except (ImportError, AttributeError):
            continue  # not installed, or a version without it
        setattr(owner, attribute, _without_cuda(function))


# `with torch.device(...)` recognises the functions by identity, so it must see them before they change.
torch.utils._device._device_constructors()
_turn_cuda()
_turn_torch()
_turn_distributed()
_turn_off()
_blind()
