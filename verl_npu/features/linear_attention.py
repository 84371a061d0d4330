"""Linear attention of Qwen3-Next and Qwen3.5 with flash-linear-attention's kernels for NPUs.

Up to 5.14, transformers only uses flash-linear-attention if there is a GPU. On NPUs, it runs torch code and hardly says
so. We use the kernels if a trial on this NPU compiles them and gives torch's numbers. Otherwise, one warning tells the
reason and what it costs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
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
"""The largest difference in bfloat16, as a part of the largest number. The kernels and torch differ by 0.014."""


class Layer(Protocol):
    """A transformers layer with a gated delta rule."""

    causal_conv1d_fn: Operator | None
    chunk_gated_delta_rule: Operator
    recurrent_gated_delta_rule: Operator


class Sizes(Protocol):
    """The part of a model's configuration that the kernels are compiled for."""

    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int


@dataclass(frozen=True, slots=True)
class Kernels:
    """flash-linear-attention's functions."""

    chunk: Operator
    recurrent: Operator
    convolution: Operator


def _declare(model: str, owner: str) -> None:
    module = f"transformers.models.{model}.modeling_{model}"
    target = f"{module}:{owner}.__init__"
    linear_attention.wrap(
        target,
        uses=(f"{module}:{_FAST}",),
        why="Up to 5.14, transformers uses flash-linear-attention only if torch.cuda is available. On NPUs, torch code "
        f"computes the gated delta rule: {COST}.",
        how="If flash-linear-attention is installed, a trial compiles its NPU kernels and compares their results and "
        "gradients with torch's. The layers then use them for the gated delta rule and the convolution. Otherwise, "
        "transformers' code still runs, and a warning tells the reason.",
        link="https://github.com/modelscope/ms-swift/pull/9195",
        retired_by=Imports(module, "transformers.integrations:use_kernel_func_from_hub_with_fallback"),
        requires=Sets(target, "chunk_gated_delta_rule"),
        name=f"use_kernels_in_{model}",
    )(use_kernels)


def use_kernels(original: Callable[..., None], layer: Layer, config: Sizes, layer_idx: int) -> None:
    """Initialize a layer, and give it flash-linear-attention's functions if they work on this NPU."""
    import torch

    # The driver of a job builds models, too, and has no NPU.
    if not (hasattr(torch, "npu") and torch.npu.is_available()):
        original(layer, config, layer_idx)
        return
    space = vars(sys.modules[type(layer).__module__])
    found = find_kernels(config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim)
    space[_FAST] = space[_FAST] or isinstance(found, Kernels)
    original(layer, config, layer_idx)
    if isinstance(found, Kernels):
        layer.causal_conv1d_fn = functools.partial(convolve, found.convolution)
        layer.chunk_gated_delta_rule, layer.recurrent_gated_delta_rule = found.chunk, found.recurrent
        reporting.report(f"linear attention uses the NPU kernels of flash-linear-attention {_version()}")
    else:
        reporting.warn(f"linear attention runs transformers' torch code, which is slow ({COST}), because {found}")


@functools.cache
def find_kernels(heads: int, key_size: int, value_size: int) -> Kernels | str:
    """Return the functions, if a trial with heads of these sizes succeeds on this NPU. Otherwise, return the
    reason."""
    missing = missing_kernels()
    if missing:
        return missing
    gated = import_module(_ENTRY)
    convolution = import_module("fla.modules.convolution").causal_conv1d
    kernels = Kernels(gated.chunk_gated_delta_rule, gated.fused_recurrent_gated_delta_rule, convolution)
    try:
        difference = _try(kernels, heads, key_size, value_size)
    except Exception as error:  # the compiler's errors have no common class
        text = (str(error).strip() or "no message").splitlines()[0]
        return f"a trial of flash-linear-attention's kernels failed on this NPU: {type(error).__name__}: {text}"
    # Written so that NaN counts as wrong.
    if not difference <= _TOLERANCE:
        return f"flash-linear-attention's results differ from torch's by {difference:.3g} on this NPU"
    return kernels


def missing_kernels() -> str:
    """Return the reason why this process has no NPU kernels of flash-linear-attention. Empty if it has them."""
    try:
        gated = import_module(_ENTRY)
        module: str = gated.chunk_gated_delta_rule.__module__
        if not module.startswith("fla."):
            return f"{_ENTRY}.chunk_gated_delta_rule was replaced by the function of {module}"
        import_module("fla.modules.convolution")
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


def convolve(
    convolution: Operator,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    seq_idx: Tensor | None = None,
) -> Tensor:
    """Compute the causal convolution with the arguments of the package causal-conv1d.

    x [batch, channels, seqlen], weight [channels, width] -> [batch, channels, seqlen]. `seq_idx` [1, seqlen] has the
    number of each token's sequence.
    """
    import torch

    ends = None
    if seq_idx is not None:
        starts = (seq_idx[0, 1:] != seq_idx[0, :-1]).nonzero()[:, 0] + 1
        ends = torch.nn.functional.pad(starts, (1, 1))
        ends[-1] = x.shape[-1]
    return convolution(x.transpose(1, 2), weight, bias, activation=activation, cu_seqlens=ends)[0].transpose(1, 2)


def _try(kernels: Kernels, heads: int, key_size: int, value_size: int) -> float:
    """Return the largest relative difference between the kernels' and torch's outputs and gradients."""
    import torch
    from transformers.models.qwen3_next import modeling_qwen3_next as torchs

    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float32, device="cpu")

    def rule(function: Operator, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **more: object) -> Tensor:
        return function(q, k, v, g=-g.float(), beta=beta, use_qk_l2norm_in_kernel=True, **more)[0]

    def convolution(x: Tensor, weight: Tensor) -> Tensor:
        mixed = torch.nn.functional.conv1d(x, weight[:, None], padding=3, groups=len(weight))
        return torch.nn.functional.silu(mixed[..., : x.shape[-1]])

    def both(x: Tensor, weight: Tensor) -> Tensor:
        return convolve(kernels.convolution, x, weight, None, "silu", torch.zeros_like(x[:, 0], dtype=torch.int32))

    tokens = (1, _LENGTH, heads)
    inputs = [random(*tokens, key_size) - 0.5, random(*tokens, key_size) - 0.5, random(*tokens, value_size) - 0.5]
    inputs += [random(*tokens), random(*tokens)]
    packed = {"cu_seqlens": torch.tensor([0, _LENGTH]).npu()}
    wanted = functools.partial(rule, torchs.torch_chunk_gated_delta_rule)
    channels = [random(1, heads * value_size, _LENGTH) - 0.5, random(heads * value_size, 4) - 0.5]
    # Models may be built on the meta device, where the kernels' own tensors must not be.
    with torch.device("cpu"), torch.enable_grad():
        return max(
            _difference(wanted, functools.partial(rule, kernels.chunk), inputs),
            _difference(wanted, functools.partial(rule, kernels.chunk, **packed), inputs),
            _difference(convolution, both, channels),
        )


def _difference(wanted: Operator, found: Operator, inputs: list[Tensor]) -> float:
    import torch

    def results(function: Operator) -> list[Tensor]:
        given = [each.to("npu", torch.bfloat16).requires_grad_() for each in inputs]
        result = function(*given)
        weights = torch.linspace(-1, 1, result.numel(), device="cpu").view(result.shape).to(result)
        return [result.detach(), *torch.autograd.grad((result * weights).sum(), given)]

    pairs = zip(results(wanted), results(found), strict=True)
    return max(((one - two).float().abs().max() / one.float().abs().max()).item() for one, two in pairs)


for _model, _owner in (
    ("qwen3_next", "Qwen3NextGatedDeltaNet"),
    ("qwen3_5", "Qwen3_5GatedDeltaNet"),
    ("qwen3_5_moe", "Qwen3_5MoeGatedDeltaNet"),
):
    _declare(_model, _owner)
