"""What vllm-ascend's own methods do to weights after loading, and in the next load, as its source has them.

They are taken out of their modules, which only import beside vLLM and an NPU's own packages.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from verl_npu.errors import EngineError
from verl_npu.features.weight_sync.engines.processing import refresh_copies_on_load, refuse_square_experts

pytestmark = pytest.mark.upstream

Source = Callable[[str, str], Path]
EXPERTS, HIDDEN = 2, 64


def method(checkout: Path, file: str, owner: str, name: str, **names: Any) -> Callable[..., Any]:
    """A method of a class in a file of the checkout, with the names that it needs from around it."""
    tree = ast.parse((checkout / "vllm_ascend" / file).read_text())
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner)
    function = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
    found = {"torch": torch, **names}
    exec(compile(ast.Module([function], []), f"{owner}.{name}", "exec"), found)
    return found[name]  # type: ignore[no-any-return]


class Loaded:
    def process_weights_after_loading(self, layer: Any) -> None:
        """vLLM's own does nothing here."""


class Unquantized(Loaded):
    def _maybe_pad_weight(self, weight: torch.Tensor) -> torch.Tensor:
        return weight


class Experts(torch.nn.Module):
    """One layer of experts, in vLLM's layout until it is processed."""

    def __init__(self, checkout: Path, intermediate: int) -> None:
        super().__init__()
        file = "ops/common_fused_moe.py"
        self.w13_weight = torch.nn.Parameter(torch.zeros(EXPERTS, 2 * intermediate, HIDDEN), requires_grad=False)
        self.w2_weight = torch.nn.Parameter(torch.zeros(EXPERTS, HIDDEN, intermediate), requires_grad=False)
        process = method(
            checkout,
            file,
            "AscendUnquantizedFusedMoEMethod",
            "process_weights_after_loading",
            UnquantizedFusedMoEMethod=Unquantized,
            is_310p=lambda: False,
            is_enable_nz=lambda dtype: False,
        )
        kind = type("Processing", (Unquantized,), {"process_weights_after_loading": process})
        self.quant_method: Any = kind()
        self.quant_method.transpose = True
        self._transpose, self._w13, self._w2 = (
            method(checkout, file, "AscendFusedMoE", name) for name in ("transpose_weight", "_load_w13", "_load_w2")
        )
        self._sent = [torch.randn(3, intermediate, HIDDEN) for _ in range(EXPERTS)]

    def transpose_weight(self, *args: Any) -> Any:
        return self._transpose(self, *args)

    def load(self) -> None:
        """The same weights each time, in a checkpoint's layout."""
        for expert, (gate, up, down) in enumerate(self._sent):
            self._w13(self, self.w13_weight.data[expert], 0, "w1", gate, 0)
            self._w13(self, self.w13_weight.data[expert], 0, "w3", up, 0)
            self._w2(self, self.w2_weight.data[expert], 1, down.T, 0)

    def process(self) -> None:
        self.quant_method.process_weights_after_loading(self)

    def held(self) -> list[torch.Tensor]:
        return [self.w13_weight.clone(), self.w2_weight.clone()]


def loaded_twice(checkout: Path, intermediate: int) -> tuple[bool, Experts]:
    """Whether experts are after a second load what they were after the first, from which they were processed."""
    experts = Experts(checkout, intermediate)
    experts.load()
    experts.process()
    before = experts.held()
    experts.load()
    experts.process()
    return all(map(torch.equal, before, experts.held())), experts


def test_experts_that_are_not_square_are_loaded_again_as_they_were(source: Source) -> None:
    same, experts = loaded_twice(source("vllm-ascend", "v0.11.0"), intermediate=48)
    assert same
    refuse_square_experts(experts)


def test_square_ones_are_garbled_without_an_error_and_refused_here(source: Source) -> None:
    same, experts = loaded_twice(source("vllm-ascend", "v0.11.0"), intermediate=HIDDEN // 2)
    assert not same
    with pytest.raises(EngineError, match="w13_weight"):
        refuse_square_experts(experts)


class Linear(torch.nn.Linear):
    quant_method = Loaded()


class Attention:
    """MLA with two heads, whose weights are processed as vllm-ascend does it."""

    kv_lora_rank, num_heads, qk_nope_head_dim, v_head_dim = 8, 2, 4, 3
    fused_qkv_a_proj = None
    enable_mlapo = False

    def __init__(self, checkout: Path) -> None:
        self.kv_b_proj = Linear(8, 2 * (4 + 3), bias=False, dtype=torch.bfloat16)
        self._process = method(
            checkout,
            "attention/mla_v1.py",
            "AscendMLAImpl",
            "process_weights_after_loading",
            LinearBase=Linear,
            UnquantizedLinearMethod=Loaded,
            AscendW8A8LinearMethod=Unquantized,
            ACL_FORMAT_FRACTAL_ND=2,
            torch_npu=SimpleNamespace(npu_format_cast=lambda weight, layout: weight),
            is_enable_nz=lambda dtype: False,
            logger=SimpleNamespace(warning_once=lambda text: None),
        )
        self.process_weights_after_loading(torch.bfloat16)

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        self._process(self, act_dtype)

    def expected(self) -> list[torch.Tensor]:
        """(heads, nope dimension, rank) and (heads, rank, value dimension), of the weight as it is."""
        by_head = self.kv_b_proj.weight.detach().view(2, 4 + 3, 8)
        return [by_head[:, :4], by_head[:, 4:].transpose(1, 2)]

    def current(self) -> bool:
        return all(map(torch.equal, (self.W_UK_T, self.W_UV), self.expected()))  # type: ignore[attr-defined]


class Model(torch.nn.Module):
    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention: Any = torch.nn.Module()
        self.attention.impl = attention

    def load_weights(self, weights: Any) -> None:
        for _, weight in weights:
            self.attention.impl.kv_b_proj.weight.data.copy_(weight)


@pytest.mark.parametrize("followed", [False, True])
def test_mlas_copies_are_those_of_the_last_sync_only_where_they_follow(source: Source, followed: bool) -> None:
    attention = Attention(source("vllm-ascend", "v0.11.0"))
    assert attention.current()
    model = Model(attention)
    if followed:
        refresh_copies_on_load(model)
    for _ in range(2):
        model.load_weights([("layers.0.self_attn.kv_b_proj.weight", torch.randn(14, 8, dtype=torch.bfloat16))])
        assert attention.current() is followed
