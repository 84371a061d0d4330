"""Linear attention of Qwen3-Next and Qwen3.5 with flash-linear-attention's kernels for NPUs.

Up to 5.14, transformers uses flash-linear-attention only if there is a GPU. On NPUs, it runs slow torch code. We use
the kernels if a trial on this NPU compiles them and gives torch's numbers. Otherwise, one warning tells the reason and
what it costs.

We replace the gated delta rule only. flash-linear-attention chooses the kernels of its causal convolution by the shape
of the input, so a trial cannot vouch for them, and the kernel that its recurrent form needs has no gradient.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from packaging.version import Version

from .. import reporting
from ..registry.patch import Feature
from ..registry.source.probe import Imports, Sets

if TYPE_CHECKING:
    from torch import Tensor

linear_attention = Feature(
    "linear_attention",
    "Qwen3-Next and Qwen3.5 use flash-linear-attention's NPU kernels; a warning says if they cannot.",
)
Operator: TypeAlias = Callable[..., Any]
"""A function of flash-linear-attention or of transformers. It returns one tensor or several."""
COST = "a training step took 7.9 s instead of 5.0 s in ms-swift#9195"
_ENTRY = "fla.ops.gated_delta_rule"
_FIRST = Version("0.5.2")
"""The first release of flash-linear-attention that has the gated delta rule for NPUs."""
_INSTALL = f"install flash-linear-attention {_FIRST} or later, and triton-ascend"
_FAST = "is_fast_path_available"
"""transformers' variable. If it is false, transformers logs that packages are missing."""
_LENGTH = 70
"""The number of tokens in the trial: more than one block of 64."""
_TOLERANCE = 0.05
"""The largest difference in bfloat16, as a part of the largest number. In the interpreter, they differ by 0.014."""


class Layer(Protocol):
    """A transformers layer with a gated delta rule."""

    chunk_gated_delta_rule: Operator


class Sizes(Protocol):
    """The part of a model's configuration that the kernels are compiled for."""

    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int


def _declare(model: str, owner: str) -> None:
    module = f"transformers.models.{model}.modeling_{model}"
    target = f"{module}:{owner}.__init__"
    linear_attention.wrap(
        target,
        uses=(f"{module}:{_FAST}",),
        why="Up to 5.14, transformers uses flash-linear-attention only if torch.cuda is available. On NPUs, torch "
        f"code computes the gated delta rule: {COST}.",
        how="If flash-linear-attention is installed, a trial compiles its NPU kernels and compares their results and "
        "gradients with torch's. The layers then use them for whole sequences. Otherwise, transformers' code still "
        "runs, and a warning tells the reason.",
        link="https://github.com/modelscope/ms-swift/pull/9195",
        retired_by=Imports(module, "transformers.integrations:use_kernel_func_from_hub_with_fallback"),
        requires=Sets(target, "chunk_gated_delta_rule"),
        name=f"use_kernels_in_{model}",
    )(use_kernels)


def use_kernels(original: Callable[..., None], layer: Layer, config: Sizes, layer_idx: int) -> None:
    """Initialize a layer. If flash-linear-attention's gated delta rule works on this NPU, make the layer use it."""
    import torch

    # The driver of a job builds models, too, and has no NPU.
    if not (hasattr(torch, "npu") and torch.npu.is_available()):
        original(layer, config, layer_idx)
        return
    space = vars(sys.modules[type(layer).__module__])
    found = find_kernels(config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim)
    space[_FAST] = space[_FAST] or not isinstance(found, str)
    original(layer, config, layer_idx)
    if not isinstance(found, str):
        layer.chunk_gated_delta_rule = found
        reporting.report(f"linear attention uses the NPU kernels of flash-linear-attention {_version()}")
    else:
        reporting.warn(f"linear attention runs transformers' torch code, which is slow ({COST}), because {found}")


@functools.cache
def find_kernels(heads: int, key_size: int, value_size: int) -> Operator | str:
    """Run flash-linear-attention's kernels once with heads of these sizes on this NPU. If the trial succeeds, return
    the function that calls the kernels; otherwise, return the reason for the failure."""
    import torch

    missing = missing_kernels()
    if missing:
        return missing
    function: Operator = import_module(_ENTRY).chunk_gated_delta_rule
    try:
        # A model may be built on the meta device, or without gradients.
        with torch.device("cpu"), torch.enable_grad():
            difference = _try(function, heads, key_size, value_size)
    except Exception as error:  # the compiler's errors have no common class
        text = (str(error).strip() or "no message").splitlines()[0]
        return f"a trial of flash-linear-attention's kernels failed on this NPU: {type(error).__name__}: {text}"
    # Written so that NaN counts as a difference.
    if not difference <= _TOLERANCE:
        return f"flash-linear-attention's results differ from torch's by {difference:.3g} on this NPU"
    return function


def missing_kernels() -> str:
    """Return the reason why this process cannot use flash-linear-attention's kernels for NPUs, or an empty string if
    it can."""
    try:
        gated = import_module(_ENTRY)
        module: str = gated.chunk_gated_delta_rule.__module__
        if not module.startswith("fla."):
            return f"{_ENTRY}.chunk_gated_delta_rule was replaced by the function of {module}"
        backend = import_module("fla.utils").device_platform
        import_module(f"{_ENTRY}.backends.triton_ascend")
    except Exception as error:  # Triton and flash-linear-attention raise many kinds of errors when they are imported
        version = _version()
        if not version:
            return f"flash-linear-attention is not installed; {_INSTALL}"
        if Version(version) < _FIRST:
            return f"flash-linear-attention {version} has no NPU kernels for it; {_INSTALL}"
        return f"flash-linear-attention {version} cannot be imported: {type(error).__name__}: {error}"
    return "" if backend == "npu" else f"Triton finds no NPU, but {backend}; {_INSTALL}"


def _version() -> str:
    for name in ("fla-core", "flash-linear-attention"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _try(function: Operator, heads: int, key_size: int, value_size: int) -> float:
    """Return the largest relative difference between the kernels' and torch's outputs and gradients, for one sequence
    and for packed sequences."""
    import torch
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    generator = torch.Generator().manual_seed(0)
    shapes = [(1, _LENGTH, heads, size) for size in (key_size, key_size, value_size)] + [(1, _LENGTH, heads)] * 2
    inputs = [torch.rand(shape, generator=generator, dtype=torch.float32) - 0.5 for shape in shapes]

    def results(rule: Operator, **packed: object) -> list[Tensor]:
        q, k, v, g, beta = given = [each.to("npu", torch.bfloat16).requires_grad_() for each in inputs]
        gates = {"g": g.float() - 0.5, "beta": beta + 0.5}
        result = rule(q, k, v, **gates, use_qk_l2norm_in_kernel=True, **packed)[0]
        weights = torch.linspace(-1, 1, result.numel()).view(result.shape).to(result)
        return [result.detach(), *torch.autograd.grad((result * weights).sum(), given)]

    wanted = results(torch_chunk_gated_delta_rule)
    # With a single sequence, the result is the same. The kernels are compiled separately for packed sequences.
    found = results(function), results(function, cu_seqlens=torch.tensor([0, _LENGTH]).npu())
    pairs = [pair for each in found for pair in zip(wanted, each, strict=True)]
    # torch's max, because Python's can miss a NaN.
    return float(torch.stack([(one - two).float().abs().max() / one.float().abs().max() for one, two in pairs]).max())


for _model, _owner in (
    ("qwen3_next", "Qwen3NextGatedDeltaNet"),
    ("qwen3_5", "Qwen3_5GatedDeltaNet"),
    ("qwen3_5_moe", "Qwen3_5MoeGatedDeltaNet"),
):
    _declare(_model, _owner)
