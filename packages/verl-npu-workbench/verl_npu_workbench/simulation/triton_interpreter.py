"""Runs Triton kernels on virtual NPUs: with a reference implementation from `triton_references` if there is one,
otherwise with Triton's slow interpreter.

The interpreter works directly on the memory of the virtual NPU. Launches can be recorded for the compiler
(`triton_launches`). The hooks in this module run when Triton's modules are imported, before the first kernel is
defined.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Protocol

import torch
from torch import Tensor
from virtual_ascend import ledger, soc
from virtual_ascend.operators.devices import check_devices

from verl_npu import environment, reporting

from . import triton_launches
from .triton_bfloat16 import compute_bfloat16, is_known
from .triton_launches import Launch
from .triton_references import reference_of


class Executor(Protocol):
    """The object that Triton's interpreter creates from a kernel and a grid."""

    fn: FunctionType
    arg_names: Sequence[str]
    grid: tuple[int, ...] | Callable[[dict[str, object]], tuple[int, ...]]


class Language(Protocol):
    """The module `triton.language`, with the interpreter's changes."""

    range: Callable[..., Iterable[object]]


class Configuration(Protocol):
    """One of the configurations that an autotuner chooses from."""

    kwargs: Mapping[str, object]

    def all_kwargs(self) -> Mapping[str, object]:
        """Return all arguments that this configuration passes to the kernel."""


class Kernel(Protocol):
    """The kernel that an autotuner launches."""

    def run(self, *given: object, **named: object) -> object:
        """Launch the kernel."""


class Tuner(Protocol):
    """Triton's Autotuner."""

    nargs: dict[str, object]
    arg_names: Sequence[str]
    fn: Kernel

    def prune_configs(self, named: Mapping[str, object]) -> Sequence[Configuration]:
        """Return the configurations to try."""


_INTERPRET = "TRITON_INTERPRET"
_UNSPECIALIZED: dict[tuple[str, str], Mapping[str, Sequence[str | int]]] = {}
"""The parameters that a kernel's `jit` excludes from specialization. The keys are the kernel's module and name, then
the option."""


def offer_triton() -> None:
    """If Triton is not installed, make `import triton` import Triton from the folder in VERL_NPU_KERNEL_TRITON."""
    folder = environment.KERNEL_TRITON.text().strip()
    if folder and folder not in sys.path:
        # At the end, because an installed Triton comes first.
        sys.path.append(folder)


def interpret(jit: ModuleType) -> None:
    """Make `triton.jit` use Triton's interpreter, unless there is a GPU that could run the kernels."""
    if torch.cuda.is_available():
        return
    if "triton.language" in sys.modules and os.environ.get(_INTERPRET) != "1":
        reporting.warn(
            "triton was imported before torch, so its kernels do not run on virtual NPUs; import torch first"
        )
        return
    os.environ[_INTERPRET] = "1"


def give_driver(module: ModuleType) -> None:
    """Give Triton a driver for virtual NPUs, because some modules query the driver for a device when they are
    imported."""
    if not torch.cuda.is_available():
        module.driver.set_active(_Driver())


def compute_launches(interpreter: ModuleType) -> None:
    """Make the interpreter record and check each launch, and then run the launch on the virtual NPU's memory."""
    upstreams = interpreter.GridExecutor

    class Launcher(upstreams):  # type: ignore[misc, valid-type]  # a class of Triton's
        def __call__(self, *given: object, **named: object) -> None:
            if not named.pop("warmup", False):
                _launch(self, given, named, super().__call__)

        def _init_args_hst(
            self, given: Sequence[object], named: Mapping[str, object]
        ) -> tuple[list[object], dict[str, object]]:
            return [_host(each) for each in given], {name: _host(each) for name, each in named.items()}

        def _restore_args_dev(self, *_views: object) -> None:
            """Do nothing, because the interpreter has written directly to the NPU's memory."""

    if is_known(interpreter):
        compute_bfloat16(interpreter)
    interpreter._patch_lang_core = _with_tensors_as_counters(interpreter, interpreter._patch_lang_core)  # type: ignore[attr-defined]
    interpreter.GridExecutor = Launcher  # type: ignore[attr-defined]
    make = interpreter.InterpretedFunction.__init__

    @functools.wraps(make)
    def noted(self: object, function: FunctionType, **options: Sequence[str | int]) -> None:
        names = ("do_not_specialize", "do_not_specialize_on_alignment")
        _UNSPECIALIZED[function.__module__, function.__name__] = {name: options.get(name) or () for name in names}
        make(self, function, **options)

    interpreter.InterpretedFunction.__init__ = noted


def offer_functions(math: ModuleType) -> None:
    """Add to `triton.language.math` the functions that triton-ascend provides and flash-linear-attention imports."""
    if not hasattr(math, "tanh"):
        math.tanh = importlib.import_module("triton.language.extra.libdevice").tanh  # type: ignore[attr-defined]


def _with_tensors_as_counters(interpreter: ModuleType, upstreams: Callable[..., object]) -> Callable[..., object]:
    """Make `tl.range` count in tensors, as a compiled kernel does. The interpreter counts in Python's integers."""

    @functools.wraps(upstreams)
    def patch(language: Language, *more: object) -> object:
        result = upstreams(language, *more)
        count = language.range
        language.range = lambda *given, **named: map(interpreter._implicit_cvt, count(*given, **named))
        return result

    return patch


def follow_tuning(autotuner: ModuleType) -> None:
    """Make an autotuner record the launch that each of its configurations would cause. No tuning takes place: the
    kernel runs with the first configuration."""
    run = autotuner.Autotuner.run

    @functools.wraps(run)
    def followed(self: Tuner, *given: object, **named: object) -> object:
        if not triton_launches.recorded() or named.get("warmup"):
            return run(self, *given, **named)
        self.nargs = dict(zip(self.arg_names, given, strict=False))
        cases = []
        for config in self.prune_configs(named):
            with triton_launches.collecting() as found:
                self.fn.run(*given, **named, **config.all_kwargs())
            label = ", ".join(f"{name}={value}" for name, value in config.kwargs.items())
            cases += [{**case, "label": label} for case in found]
        with triton_launches.tuned(cases):
            return run(self, *given, **named)

    autotuner.Autotuner.run = followed


def _launch(
    executor: Executor, given: Sequence[object], named: dict[str, object], compute: Callable[..., object]
) -> None:
    function = executor.fn
    options = {name: named.pop(name) for name in list(named) if name not in executor.arg_names}
    options.pop("grid", None)
    bound = inspect.signature(function).bind(*given, **named)
    bound.apply_defaults()
    arguments = bound.arguments
    name = f"{function.__module__}.{function.__name__}"
    grid = executor.grid(dict(arguments)) if callable(executor.grid) else executor.grid
    executor.grid = tuple(map(int, grid))
    unspecialized = _UNSPECIALIZED.get((function.__module__, function.__name__), {})
    names = {option: _names(parameters, executor.arg_names) for option, parameters in unspecialized.items()}
    launch = Launch(
        function=function,
        arguments=arguments,
        grid=executor.grid,
        options=options,
        unspecialized=names.get("do_not_specialize", ()),
        unaligned=names.get("do_not_specialize_on_alignment", ()),
    )
    check_devices(name, arguments)
    if triton_launches.record(launch):
        return
    reference = reference_of(name, executor.arg_names)
    if reference is not None:
        reference(executor.grid, **arguments)
        return
    _check_possible(name, sys.modules[type(executor).__base__.__module__])
    _say_once()
    # Leave out the options, which the interpreter would mistake for arguments.
    compute(*given, **named)


def _names(told: Sequence[str | int], parameters: Sequence[str]) -> tuple[str, ...]:
    return tuple(parameters[each] if isinstance(each, int) else each for each in told)


def _check_possible(name: str, interpreter: ModuleType) -> None:
    if not is_known(interpreter):
        raise NotImplementedError(
            f"Triton kernel {name}: virtual-ascend does not support the interpreter of Triton "
            f"{sys.modules['triton'].__version__}; the tested releases are 3.2 and 3.5"
        )
    if torch.npu.is_current_stream_capturing():
        raise NotImplementedError(
            f"Triton kernel {name}: virtual-ascend cannot capture this kernel in a graph, because Triton's "
            "interpreter runs it"
        )
    if ledger.phantom_bytes():
        raise NotImplementedError(
            f"the Triton kernel {name} cannot run on phantom NPUs, whose tensors have no values "
            "(VIRTUAL_ASCEND_PHANTOM is set)"
        )


@functools.cache
def _say_once() -> None:
    reporting.report("Triton's kernels are computed by Triton's interpreter, slowly (SIMULATED)")


def _host(value: object) -> object:
    """Return a CPU tensor on the memory of a virtual NPU's tensor, with the same strides and aliases."""
    if isinstance(value, Tensor):
        return _view(value) if value.device.type == "npu" else value
    base = getattr(value, "base", None)
    # `triton.reinterpret` makes such an object.
    return type(value)(_view(base), value.dtype) if isinstance(base, Tensor) else value  # type: ignore[call-arg, attr-defined]


def _view(tensor: Tensor) -> Tensor:
    storage, size = tensor.untyped_storage(), tensor.element_size()
    count = storage.nbytes() // size
    if not count:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    torch.npu.synchronize(tensor.device)
    memory = (ctypes.c_uint8 * (count * size)).from_address(storage.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype).as_strided(
        tensor.shape, tensor.stride(), tensor.storage_offset()
    )


class _Utils:
    """The NPU's properties, as Triton's driver reports them."""

    def get_device_properties(self, _device: object = None) -> dict[str, int]:
        return {"max_shared_mem": 1, "num_aicore": soc.CUBE_CORES, "num_vectorcore": soc.VECTOR_CORES}

    def get_aicore_num(self) -> int:
        return soc.CUBE_CORES

    def get_aivector_core_num(self) -> int:
        return soc.VECTOR_CORES

    def get_arch(self) -> str:
        return soc.NAME


class _Driver:
    """Triton's driver for a virtual NPU."""

    utils = _Utils()

    def get_current_target(self) -> object:
        return importlib.import_module("triton.backends.compiler").GPUTarget("npu", soc.NAME, 0)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("npu", torch.npu.current_device())

    def get_device_interface(self) -> object:
        return torch.npu

    def get_current_device(self) -> int:
        return int(torch.npu.current_device())

    def set_current_device(self, device: int) -> None:
        torch.npu.set_device(device)

    def get_current_stream(self, _device: object = None) -> int:
        return 0

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """Return a function that appears to time a configuration but runs nothing, so that the first configuration is
        chosen."""
        return lambda _call, quantiles=(0.5,), **_more: [0.0 for _ in quantiles]
