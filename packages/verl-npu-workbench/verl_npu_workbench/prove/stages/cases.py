"""The operators that verl-npu and its models call: their inputs, and their formulas in plain torch.

If the operator is torch's own, it is also the formula. Inputs follow from the case's name and are the same on every
machine.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

Tensors: TypeAlias = "Sequence[Tensor]"
Formula: TypeAlias = "Callable[..., Tensor | Sequence[Tensor]]"
FLOATS = ("float32", "float16", "bfloat16")
_WHOLE = ("int64",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """An input tensor of a case."""

    shape: tuple[int, ...]
    below: int = 0
    """The exclusive upper limit of random integers. If it is 0, the input has floating-point numbers of the case's
    type."""
    scale: float = 1.0
    positive: bool = False

    def make(self, seed: int, dtype: str) -> Tensor:
        import torch

        generator = torch.Generator().manual_seed(seed)
        if self.below:
            return torch.randint(0, self.below, self.shape, generator=generator)
        drawn = torch.randn(self.shape, generator=generator) * self.scale
        return (drawn.abs() + 0.1 if self.positive else drawn).to(getattr(torch, dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call of an operator."""

    name: str
    inputs: tuple[Input, ...]
    formula: Formula
    """The formula in plain torch. It is computed on the host, in the inputs' type."""
    operator: str = ""
    """The operator's name in torch_npu. If it is empty, the formula itself is computed on the NPU."""
    call: Callable[..., Tensor | Sequence[Tensor]] | None = None
    """A function that gets the operator and the inputs, and calls the operator."""
    gradients: bool = True
    dtypes: tuple[str, ...] = FLOATS
    used_by: str = "the models"
    otherwise: str = ""
    """What verl-npu does instead if the operator rejects the call. Empty if verl-npu has no fallback."""

    def made(self, dtype: str) -> list[Tensor]:
        """Return the inputs, as tensors on the host."""
        seed = zlib.crc32(self.name.encode())
        return [each.make(seed + place, dtype) for place, each in enumerate(self.inputs)]

    def on_npu(self, torch_npu: ModuleType, given: Tensors) -> Tensor | Tensors:
        """Run the operator on the NPU. Raises AttributeError if torch_npu does not have the operator."""
        if self.call is None:
            return self.formula(*given)
        return self.call(getattr(torch_npu, self.operator), *given)


def floats(*shape: int, scale: float = 1.0, positive: bool = False) -> Input:
    """Return an input whose values are normally distributed."""
    return Input(shape=shape, scale=scale, positive=positive)


def whole(*shape: int, below: int) -> Input:
    """Return an input whose values are integers from 0 to `below` - 1."""
    return Input(shape=shape, below=below)


def cases() -> tuple[Case, ...]:
    """Return all cases, the cheapest first."""
    return (*_elementwise(), *_sums(), *_choices(), *_whole_numbers(), *_products(), *_fused(), *_experts())


def _elementwise() -> Iterator[Case]:
    import torch

    wide = floats(64, 96)
    for name, formula in (
        ("exp", torch.exp),
        ("sigmoid", torch.sigmoid),
        ("tanh", torch.tanh),
        ("silu", torch.nn.functional.silu),
        ("gelu", lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
        ("clamp", lambda x: x.clamp(-0.5, 0.8)),
    ):
        yield Case(name=name, inputs=(wide,), formula=formula)
    for name, formula in (("log", torch.log), ("rsqrt", torch.rsqrt)):
        yield Case(name=name, inputs=(floats(64, 96, positive=True),), formula=formula)
    yield Case(name="add", inputs=(wide, floats(96)), formula=lambda x, y: x + y)
    yield Case(name="mul", inputs=(wide, floats(64, 1)), formula=lambda x, y: x * y)
    yield Case(name="div", inputs=(wide, floats(64, 96, positive=True)), formula=lambda x, y: x / y)
    yield Case(
        name="where",
        inputs=(whole(64, 96, below=2), wide),
        formula=lambda chosen, x: torch.where(chosen > 0, x, 2 * x),
    )


def _sums() -> Iterator[Case]:
    import torch

    functional = torch.nn.functional
    wide = floats(48, 320)
    for name, formula in (
        ("sum", lambda x: x.sum(-1)),
        ("mean", lambda x: x.mean(-1)),
        ("cumsum", lambda x: x.cumsum(-1)),
        ("norm", lambda x: torch.linalg.vector_norm(x, dim=-1)),
        ("softmax", lambda x: x.softmax(-1)),
        ("log_softmax", lambda x: x.log_softmax(-1)),
        ("logsumexp", lambda x: x.logsumexp(-1)),
    ):
        yield Case(name=name, inputs=(wide,), formula=formula, used_by="the loss, and attention of transformers")
    yield Case(
        name="layer_norm",
        inputs=(wide, floats(320), floats(320)),
        formula=lambda x, weight, bias: functional.layer_norm(x, (320,), weight, bias, 1e-6),
    )
    yield Case(
        name="cross_entropy",
        inputs=(wide, whole(48, below=320)),
        formula=lambda x, target: functional.cross_entropy(x, target, reduction="none"),
        used_by="SFT's loss",
    )
    yield Case(
        name="log-probabilities of tokens",
        inputs=(wide, whole(48, 1, below=320)),
        formula=lambda x, chosen: x.log_softmax(-1).gather(-1, chosen),
        used_by="the loss of reinforcement learning",
    )
    yield Case(
        name="entropy of tokens",
        inputs=(wide,),
        formula=lambda x: x.logsumexp(-1) - (x.softmax(-1) * x).sum(-1),
        used_by="the loss of reinforcement learning",
    )


def _choices() -> Iterator[Case]:
    import torch

    functional = torch.nn.functional
    rows, places = floats(96, 64), whole(40, below=96)
    yield Case(name="embedding", inputs=(whole(5, 11, below=96), rows), formula=functional.embedding)
    yield Case(name="index_select", inputs=(rows, places), formula=lambda x, where: x.index_select(0, where))
    yield Case(
        name="index_add",
        inputs=(rows, places, floats(40, 64)),
        formula=lambda x, where, more: x.index_add(0, where, more),
        used_by="experts of transformers",
    )
    yield Case(
        name="scatter_add",
        inputs=(rows, whole(96, 64, below=96), floats(96, 64)),
        formula=lambda x, where, more: x.scatter_add(0, where, more),
    )
    yield Case(
        name="topk", inputs=(rows,), formula=lambda x: torch.topk(x, 5, dim=-1).values, used_by="routers, and sampling"
    )
    yield Case(name="sort", inputs=(rows,), formula=lambda x: torch.sort(x, dim=-1).values, used_by="sampling")
    yield Case(name="cat", inputs=(rows, floats(96, 32)), formula=lambda x, y: torch.cat((x, y), dim=-1))


def _whole_numbers() -> Iterator[Case]:
    import torch

    numbers = whole(12, 33, below=50)
    for name, formula in (
        ("cumsum of whole numbers", lambda x: x.cumsum(-1)),
        ("sort of whole numbers", lambda x: torch.sort(x, dim=-1, stable=True)[0]),
        ("nonzero", lambda x: (x > 25).nonzero()),
        ("bincount", lambda x: torch.bincount(x.flatten(), minlength=50)),
        ("repeat_interleave", lambda x: torch.repeat_interleave(x[0], x[1] % 3)),
        ("argmax", lambda x: (x * 37 % 1009).argmax(-1)),
        ("masked sum", lambda x: (x * (x % 2 == 0)).sum(-1)),
        ("unique", lambda x: torch.unique(x)),
    ):
        yield Case(
            name=name, inputs=(numbers,), formula=formula, gradients=False, dtypes=_WHOLE, used_by="masks and packing"
        )


def _products() -> Iterator[Case]:
    import torch

    functional = torch.nn.functional
    yield Case(name="matmul", inputs=(floats(64, 96), floats(96, 48)), formula=torch.matmul)
    yield Case(name="linear", inputs=(floats(3, 17, 96), floats(80, 96), floats(80)), formula=functional.linear)
    yield Case(name="bmm", inputs=(floats(6, 24, 40), floats(6, 40, 24)), formula=torch.bmm)
    yield Case(
        name="conv3d",
        inputs=(floats(5, 3, 2, 14, 14), floats(32, 3, 2, 14, 14, scale=0.05)),
        formula=lambda x, weight: functional.conv3d(x, weight, stride=(2, 14, 14)),
        used_by="the pictures' patches",
    )


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    import torch

    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    import torch

    # Like transformers and the operator, sum in float32 at least.
    wide = torch.promote_types(x.dtype, torch.float32)
    long = x.to(wide)
    return weight * (long * torch.rsqrt(long.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def _gated(x: Tensor) -> Tensor:
    import torch

    first, second = x.chunk(2, -1)
    return torch.nn.functional.silu(first) * second


def _fused() -> Iterator[Case]:
    ours = "verl-npu's fused operators"
    yield Case(
        name="npu_rms_norm",
        operator="npu_rms_norm",
        inputs=(floats(64, 128), floats(128)),
        formula=_normed,
        call=lambda operator, x, weight: operator(x, weight, epsilon=1e-6)[0],
        used_by=ours,
    )
    yield Case(
        name="npu_swiglu",
        operator="npu_swiglu",
        inputs=(floats(64, 192),),
        formula=_gated,
        call=lambda operator, x: operator(x, dim=-1),
        used_by=ours,
    )
    yield Case(
        name="npu_rotary_mul",
        operator="npu_rotary_mul",
        inputs=(floats(2, 4, 24, 64), floats(2, 1, 24, 64), floats(2, 1, 24, 64)),
        formula=_turned,
        call=lambda operator, x, cos, sin: operator(x, cos, sin),
        used_by=ours,
    )
    yield Case(
        name="npu_add_rms_norm",
        operator="npu_add_rms_norm",
        inputs=(floats(64, 128), floats(64, 128), floats(128)),
        formula=lambda x, more, weight: _normed(x + more, weight),
        call=lambda operator, x, more, weight: operator(x, more, weight, 1e-6)[0],
        gradients=False,
        used_by="vllm-ascend",
    )


_TOKENS, _EXPERTS, _EACH, _WIDTH = 24, 4, 2, 64


def _sorted_rows(tokens: Tensor, chosen: Tensor) -> Tensor:
    import torch

    order = torch.argsort(chosen.flatten(), stable=True)
    return tokens.index_select(0, order.to(tokens.device) // _EACH)


def _places(chosen: Tensor) -> Tensor:
    """Return the position of each token's row among the sorted rows."""
    import torch

    order = torch.argsort(chosen.flatten().cpu(), stable=True)
    return torch.argsort(order).to(torch.int32)


def _joined(rows: Tensor, probabilities: Tensor, chosen: Tensor) -> Tensor:
    back = rows.index_select(0, _places(chosen).long().to(rows.device))
    return (back.unflatten(0, (_TOKENS, _EACH)) * probabilities.unsqueeze(-1)).sum(1)


def _each_expert(rows: Tensor, weights: Tensor) -> Tensor:
    import torch

    parts = rows.split(rows.shape[0] // _EXPERTS)
    return torch.cat([part @ weight for part, weight in zip(parts, weights, strict=True)])


def _ends(x: Tensor) -> Tensor:
    import torch

    return torch.arange(1, _EXPERTS + 1).mul(x.shape[0] // _EXPERTS).to(x.device)


def _experts() -> Iterator[Case]:
    ours = "verl-npu's experts"
    chosen = whole(_TOKENS, _EACH, below=_EXPERTS)
    rows = floats(_TOKENS * _EACH, _WIDTH)
    yield Case(
        name="npu_moe_token_permute",
        operator="npu_moe_token_permute",
        inputs=(floats(_TOKENS, _WIDTH), chosen),
        formula=_sorted_rows,
        call=lambda operator, tokens, experts: operator(tokens, experts.int())[0],
        used_by=ours,
    )
    yield Case(
        name="npu_moe_token_unpermute",
        operator="npu_moe_token_unpermute",
        inputs=(rows, floats(_TOKENS, _EACH, positive=True), chosen),
        formula=_joined,
        call=lambda operator, x, probabilities, experts: operator(
            x, _places(experts).to(x.device), probs=probabilities
        ),
        used_by=ours,
    )
    yield Case(
        name="npu_grouped_matmul",
        operator="npu_grouped_matmul",
        inputs=(rows, floats(_EXPERTS, _WIDTH, 48, scale=0.2)),
        formula=_each_expert,
        call=lambda operator, x, weights: operator(
            [x], list(weights), group_list=_ends(x), split_item=2, group_type=0
        )[0],
        gradients=False,
        used_by=ours,
    )
    yield Case(
        name="npu_grouped_matmul of gradients",
        operator="npu_grouped_matmul",
        inputs=(rows, floats(_TOKENS * _EACH, 48, scale=0.2)),
        formula=_each_weight,
        call=lambda operator, x, gradient: operator(
            [x.t()], [gradient], group_list=_ends(x), split_item=3, group_type=2
        )[0],
        gradients=False,
        used_by=ours,
        otherwise="verl-npu then computes the experts' gradients one by one, which is slower",
    )


def _each_weight(rows: Tensor, gradients: Tensor) -> Tensor:
    import torch

    count = rows.shape[0] // _EXPERTS
    pairs = zip(rows.split(count), gradients.split(count), strict=True)
    return torch.stack([left.t() @ right for left, right in pairs])
