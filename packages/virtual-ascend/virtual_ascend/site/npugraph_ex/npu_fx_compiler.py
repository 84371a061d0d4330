"""The compiler: functionalizes a graph, replaces patterns in it, and runs its operators one by one."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_module_simplified
from torch._inductor.fx_passes.post_grad import decompose_auto_functionalized, remove_noop_ops
from torch.utils._mode_utils import no_dispatch
from torch_npu._unimplemented import not_implemented

from npugraph_ex.configs.compiler_config import CompilerConfig, _process_kwargs_options
from npugraph_ex.patterns import pattern_pass_manager

__all__ = ["compile_fx", "get_compiler", "get_npu_backend"]

# With these settings the wheel does not run the operators of a graph one by one.
_UNSUPPORTED_SETTINGS = ("static_kernel_compile", "super_kernel_optimize", "dump_tensor_data")


class _CompiledFxGraph:
    """A graph that can be called."""

    def __init__(self, runner: Callable[..., Any], config: CompilerConfig | None = None) -> None:
        self.runner = runner
        self.config = config

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.runner(*args, **kwargs)

    def get_code(self, extend_config: object = None) -> None:
        """Return None instead of code, so that another process compiles the graph again."""


class _NpuFxCompiler:
    def __init__(self, compiler_config: CompilerConfig) -> None:
        self.config = compiler_config

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> _CompiledFxGraph:
        return self._get_compiled_gm(gm, example_inputs)

    def _get_compiled_gm(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> _CompiledFxGraph:
        """Return the compiled graph. vllm-ascend wraps this method by its name."""
        if not self.config.force_eager:
            not_implemented("npugraph_ex without force_eager, which captures graphs of its own,")()
        for name in _UNSUPPORTED_SETTINGS:
            if getattr(self.config, name):
                not_implemented(f"{name} of npugraph_ex")()
        with no_dispatch():
            own = copy.deepcopy(gm)
        _optimize(own, example_inputs, self.config)
        return _CompiledFxGraph(own, self.config)


def _optimize(module: torch.fx.GraphModule, example_inputs: Sequence[Any], config: CompilerConfig) -> None:
    if config.post_grad_custom_pre_pass is not None:
        config.post_grad_custom_pre_pass(module, example_inputs, config)
    if config.remove_noop_ops:
        remove_noop_ops(module.graph)
    if config.pattern_fusion_pass:
        pattern_pass_manager.replace(module)
    for node in module.graph.nodes:
        if node.target == torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
    if config.post_grad_custom_post_pass is not None:
        config.post_grad_custom_post_pass(module, example_inputs, config)
    module.graph.eliminate_dead_code()
    if config.input_inplace_pass:
        decompose_auto_functionalized(module.graph)
    module.graph.lint()
    module.recompile()


def compile_fx(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any] = (), options: Mapping[str, Any] | None = None
) -> _CompiledFxGraph:
    """Compile a functional graph."""
    config = CompilerConfig()
    _process_kwargs_options(config, {"options": options or {}})
    return get_compiler(config)(gm, example_inputs)


def get_compiler(compiler_config: CompilerConfig | None = None) -> _NpuFxCompiler:
    """Return the compiler of functional graphs."""
    return _NpuFxCompiler(CompilerConfig() if compiler_config is None else compiler_config)


def get_npu_backend(
    *, compiler_config: CompilerConfig | None = None, custom_decompositions: Mapping[Any, Any] | None = None
) -> Callable[..., Any]:
    """Return the backend for `torch.compile`."""
    return functools.partial(
        _npu_backend,
        compiler_config=CompilerConfig() if compiler_config is None else compiler_config,
        decompositions=dict(custom_decompositions or {}),
    )


def _npu_backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    compiler_config: CompilerConfig,
    decompositions: Mapping[Any, Any],
    **kwargs: Any,
) -> Callable[..., Any]:
    _process_kwargs_options(compiler_config, kwargs)
    compiler = get_compiler(compiler_config)
    compiled: Callable[..., Any] = aot_module_simplified(
        gm,
        example_inputs,
        fw_compiler=compiler,
        bw_compiler=compiler,
        inference_compiler=compiler,
        decompositions=decompositions,
        keep_inference_input_mutations=True,
    )
    return compiled
