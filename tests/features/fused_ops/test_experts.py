"""The grouped matrix product of experts, with every torch_npu: some refuse the operator of its backward pass.

Upstream's patches of the models add blocks of experts; those that do not fit this transformers are removed again.
"""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from testing.programs import EXPERTS
from virtual_ascend.testing import run

from verl_npu.features.fused_ops.experts import keep_transformers_expert_blocks
from verl_npu.features.fused_ops.grouped import weights_of_tensors


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("version", "refuses"),
    [
        pytest.param("2.5.1", True, marks=pytest.mark.nightly("verl_npu/features/fused_ops")),
        ("2.5.1.post1", True),
        pytest.param("2.7.1", False, marks=pytest.mark.nightly("verl_npu/features/fused_ops")),
    ],
)
def test_experts_have_their_gradients_with_every_torch_npu(version: str, refuses: bool) -> None:
    done = run(EXPERTS, VIRTUAL_ASCEND_TORCH_NPU_VERSION=version)
    assert done.returncode == 0, done.stderr
    right, refused = json.loads(done.stdout.splitlines()[-1])
    assert right == [True] * 8
    assert (refused is not None) is refuses
    assert ("the gradients of experts are computed one by one" in done.stderr) is refuses


@pytest.mark.parametrize("parallel", [True, False])
def test_experts_of_which_this_rank_has_some_are_left_to_transformers(parallel: bool) -> None:
    torch = pytest.importorskip("torch")
    weights = {"gate_up_proj": torch.ones(2, 6, 4), "down_proj": torch.ones(2, 4, 3), "act_fn": torch.nn.SiLU()}
    experts: Any = SimpleNamespace(**weights, num_experts=2, _is_expert_parallel=parallel)
    assert (weights_of_tensors(experts, transposed=True) is None) is parallel


def make(version: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Put modules in place of a transformers version's own; return the modeling modules by model name."""

    def module(name: str) -> Any:
        made: Any = ModuleType(name)
        made.__spec__ = ModuleSpec(name, None)
        made.__path__ = []
        monkeypatch.setitem(sys.modules, name, made)
        return made

    for name in ("transformers", "transformers.models"):
        module(name)
    models = {}
    for model in ("qwen3_moe", "qwen3_next", "qwen3_vl_moe", *(["qwen3_5"] if version == 5 else [])):
        module(f"transformers.models.{model}")
        models[model] = module(f"transformers.models.{model}.modeling_{model}")
    for model, prefix in (("qwen3_moe", "Qwen3Moe"), ("qwen3_next", "Qwen3Next")):
        setattr(models[model], f"{prefix}SparseMoeBlock", type("Block", (), {"forward": "transformers'"}))
        if version == 5:
            setattr(models[model], f"{prefix}Experts", type("Experts", (), {}))

    class Experts:
        def forward(self, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> None: ...

    models["qwen3_vl_moe"].Qwen3VLMoeTextExperts = Experts
    models["qwen3_vl_moe"].Qwen3VLMoeTextSparseMoeBlock = "transformers'"
    return models


def blocks(models: dict[str, Any]) -> list[str]:
    return [
        models["qwen3_moe"].Qwen3MoeSparseMoeBlock.forward,
        models["qwen3_next"].Qwen3NextSparseMoeBlock.forward,
        models["qwen3_vl_moe"].Qwen3VLMoeTextSparseMoeBlock,
    ]


def patch(models: dict[str, Any]) -> str:
    """Patch the models as verl v0.8.0 does, whatever the version."""
    models["qwen3_moe"].Qwen3MoeSparseMoeBlock.forward = "verl's"
    models["qwen3_next"].Qwen3NextSparseMoeBlock.forward = "verl's"
    models["qwen3_vl_moe"].Qwen3VLMoeTextSparseMoeBlock = "verl's"
    return "done"


def test_with_transformers_5_its_blocks_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    models = make(5, monkeypatch)
    assert keep_transformers_expert_blocks(lambda config: patch(models), {"use_liger": False}) == "done"
    assert blocks(models) == ["transformers'"] * 3


def test_with_a_transformers_that_has_lists_of_experts_upstreams_blocks_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models = make(4, monkeypatch)
    assert keep_transformers_expert_blocks(lambda: patch(models)) == "done"
    assert blocks(models) == ["verl's"] * 3
