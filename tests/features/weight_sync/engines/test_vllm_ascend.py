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
from verl_npu.features.weight_sync.engines.processing import (
    lay_out_experts_for_loading,
    refresh_copies_on_load,
    refuse_disposed_projections,
    refuse_square_experts,
)

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
        kind = type("AscendUnquantizedFusedMoEMethod", (Unquantized,), {"process_weights_after_loading": process})
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


LATER = ["v0.13.0", "v0.18.0", "v0.23.0"]


class LaterExperts(torch.nn.Module):
    """A model with one layer of experts, that is processed and woken up as a version from v0.13.0 on does it."""

    def __init__(self, checkout: Path, intermediate: int) -> None:
        super().__init__()
        self.experts: Any = torch.nn.Module()
        self.experts.w13_weight = torch.nn.Parameter(torch.zeros(EXPERTS, 2 * intermediate, HIDDEN), False)
        self.experts.w2_weight = torch.nn.Parameter(torch.zeros(EXPERTS, HIDDEN, intermediate), False)
        off = SimpleNamespace(VLLM_ASCEND_ENABLE_FUSED_MC2=0, VLLM_ASCEND_ENABLE_NZ=0)
        config = SimpleNamespace(enable_fused_mc2=0, weight_nz_mode=0, enable_sleep_mode_extra_cleanup=False)
        process = method(
            checkout,
            "ops/fused_moe/fused_moe.py",
            "AscendUnquantizedFusedMoEMethod",
            "process_weights_after_loading",
            UnquantizedFusedMoEMethod=Unquantized,
            envs_ascend=off,
            get_ascend_config=lambda: config,
            maybe_trans_nz=lambda weight: weight,
            is_310p=lambda: False,
            get_ascend_device_type=lambda: "A2",
            AscendDeviceType=SimpleNamespace(_310P="310P"),
        )
        kind = type("AscendUnquantizedFusedMoEMethod", (Unquantized,), {"process_weights_after_loading": process})
        self.experts.quant_method = kind()
        self._wake_up = method(
            checkout,
            "worker/worker.py",
            "NPUWorker",
            "wake_up",
            envs_ascend=off,
            get_ascend_config=lambda: config,
            Optional=Any,
            CaMemAllocator=SimpleNamespace(get_instance=lambda: SimpleNamespace(wake_up=lambda tags: None)),
        )

    def process(self) -> None:
        self.experts.quant_method.process_weights_after_loading(self.experts)

    def wake_up(self) -> None:
        text = SimpleNamespace(hidden_size=HIDDEN)
        config = SimpleNamespace(model_config=SimpleNamespace(hf_text_config=text), quant_config=None)
        runner = SimpleNamespace(model=self)
        self._wake_up(
            SimpleNamespace(vllm_config=config, model_runner=runner, _sleep_saved_buffers={}), tags=["weights"]
        )


@pytest.mark.parametrize("version", LATER)
@pytest.mark.parametrize("intermediate", [HIDDEN // 2, HIDDEN], ids=["w13", "w2"])
def test_later_versions_square_experts_are_refused_unless_the_engine_woke_up(
    source: Source, version: str, intermediate: int
) -> None:
    model = LaterExperts(source("vllm-ascend", version), intermediate)
    refuse_square_experts(model)  # as they are when the engine is started
    for _ in range(2):
        model.process()
        with pytest.raises(EngineError, match="w13_weight" if intermediate < HIDDEN else "w2_weight"):
            refuse_square_experts(model)
        model.wake_up()
        refuse_square_experts(model)


@pytest.mark.parametrize("version", LATER)
def test_later_versions_other_experts_are_left_to_the_loader(source: Source, version: str) -> None:
    model = LaterExperts(source("vllm-ascend", version), intermediate=48)
    model.process()
    refuse_square_experts(model)


@pytest.mark.parametrize("version", LATER)
@pytest.mark.parametrize("intermediate", [HIDDEN // 2, HIDDEN, 48], ids=["square w13", "square w2", "none is square"])
@pytest.mark.parametrize("woke", [False, True], ids=["it never slept", "it woke up"])
def test_later_versions_experts_are_transposed_once_in_each_sync(
    source: Source, version: str, intermediate: int, woke: bool
) -> None:
    model = LaterExperts(source("vllm-ascend", version), intermediate)
    model.process()
    layer = model.experts
    for _ in range(3):
        if woke:
            model.wake_up()
        lay_out_experts_for_loading(model)
        w13, w2 = torch.randn(EXPERTS, 2 * intermediate, HIDDEN), torch.randn(EXPERTS, HIDDEN, intermediate)
        layer.w13_weight.data.copy_(w13)
        layer.w2_weight.data.copy_(w2)
        model.process()
        assert torch.equal(layer.w13_weight, w13.transpose(1, 2))
        assert torch.equal(layer.w2_weight, w2.transpose(1, 2))


def test_experts_that_are_laid_out_anew_keep_their_loader(source: Source) -> None:
    model = LaterExperts(source("vllm-ascend", LATER[0]), 48)
    model.process()
    model.experts.w13_weight.weight_loader = "the loader"
    lay_out_experts_for_loading(model)
    assert model.experts.w13_weight.weight_loader == "the loader"


def test_experts_of_a_version_that_counts_itself_are_left(source: Source) -> None:
    experts = Experts(source("vllm-ascend", "v0.11.0"), intermediate=48)
    experts.load()
    experts.process()
    held = experts.held()
    lay_out_experts_for_loading(experts)
    assert all(map(torch.equal, held, experts.held()))


class Sparse(Attention):
    """Sparse attention with two heads."""

    local_num_heads = 2
    enable_dsa_cp = enable_sfa_prolog_v3 = enable_sparse_li_c8 = use_sparse_c8_indexer = has_indexer = False

    def __init__(self, checkout: Path) -> None:
        self.kv_b_proj = Linear(8, 2 * (4 + 3), bias=False, dtype=torch.bfloat16)

        def dispose(layer: Any) -> None:
            layer.weight.data = torch.empty(0, dtype=torch.bfloat16)

        self._process = method(
            checkout,
            "attention/sfa_v1.py",
            "AscendSFAImpl",
            "process_weights_after_loading",
            LinearBase=Linear,
            UnquantizedLinearMethod=Loaded,
            AscendW8A8LinearMethod=Unquantized,
            ACL_FORMAT_FRACTAL_ND=2,
            torch_npu=SimpleNamespace(npu_format_cast=lambda weight, layout: weight),
            dispose_layer=dispose,
            maybe_trans_nz=lambda weight: weight,
        )
        self.process_weights_after_loading(torch.bfloat16)

    def current(self) -> bool:
        return all(map(torch.equal, (self.kv_b_proj_w_k, self.kv_b_proj_w_v), self.expected()))  # type: ignore[attr-defined]


def test_sparse_attentions_copies_follow_by_their_own_names(source: Source) -> None:
    attention = Sparse(source("vllm-ascend", "v0.11.0"))
    model = Model(attention)
    refuse_disposed_projections(model)
    new = [("layers.0.self_attn.kv_b_proj.weight", torch.randn(14, 8, dtype=torch.bfloat16))]
    model.load_weights(new)
    assert not attention.current()
    refresh_copies_on_load(model)
    model.load_weights(new)
    assert attention.current()


@pytest.mark.parametrize("version", LATER)
def test_sparse_attention_that_has_freed_its_projection_is_refused(source: Source, version: str) -> None:
    model = Model(Sparse(source("vllm-ascend", version)))
    with pytest.raises(EngineError, match=r"kv_b_proj of attention.*has freed it"):
        refuse_disposed_projections(model)


class EarlyAttention:
    """MLA of the engine V0, whose weights are processed as vllm-ascend 0.9.1 does it."""

    kv_lora_rank, num_heads, qk_nope_head_dim, v_head_dim = 8, 2, 4, 3

    def __init__(self, checkout: Path) -> None:
        self.kv_b_proj = torch.nn.Linear(8, 2 * (4 + 3), bias=False, dtype=torch.bfloat16)
        self.w_kc: Any = None
        self.w_vc: Any = None
        owner = "AscendMLAAttentionBackendImpl"
        self._process = method(checkout, "attention/attention.py", owner, "process_weights_after_loading")
        self.process_weights_after_loading(torch.bfloat16)

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        self._process(self, act_dtype)

    def current(self) -> bool:
        by_head = self.kv_b_proj.weight.detach().view(2, 4 + 3, 8)
        return torch.equal(self.w_kc, by_head[:, :4]) and torch.equal(self.w_vc, by_head[:, 4:].transpose(1, 2))


@pytest.mark.parametrize("followed", [False, True])
def test_the_early_copies_are_those_of_the_last_sync_only_if_they_follow(source: Source, followed: bool) -> None:
    attention = EarlyAttention(source("vllm-ascend", "v0.9.1"))
    assert attention.current()
    model = Model(attention)  # type: ignore[arg-type]
    if followed:
        refresh_copies_on_load(model)
    for _ in range(2):
        model.load_weights([("layers.0.self_attn.kv_b_proj.weight", torch.randn(14, 8, dtype=torch.bfloat16))])
        assert attention.current() is followed
