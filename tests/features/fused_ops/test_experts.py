"""The grouped product of experts, with every torch_npu: some refuse the operator of its backward.

Upstream's patches of the models put in blocks of experts; those that do not fit this transformers are put back.
"""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
from virtual_ascend.testing import run

from verl_npu.features.fused_ops.experts import keep_transformers_expert_blocks

PROGRAM = """
import json, torch, torch_npu
from verl_npu.features.fused_ops.grouped import grouped_linear
torch.manual_seed(0)
def experts(dtype, transposed, stacked, ends=(2, 2, 7)):
    x = torch.randn(7, 4, dtype=dtype).npu().requires_grad_()
    shape = (5, 4) if transposed else (4, 5)
    parts = [torch.randn(*shape, dtype=dtype).npu() for _ in ends]
    weights = [w.requires_grad_() for w in ([torch.stack(parts)] if stacked else parts)]
    out = grouped_linear(x, torch.tensor(ends).npu(), weights, transposed=transposed)
    out.square().sum().backward()
    found = [out, x.grad, *(torch.stack([w.grad for w in weights]) if not stacked else weights[0].grad)]
    twin = x.detach().requires_grad_()
    twins = [w.detach().requires_grad_() for w in parts]
    bounds = [0, *ends]
    rows = [twin[a:b] @ (w.t() if transposed else w) for a, b, w in zip(bounds, ends, twins)]
    torch.cat(rows).square().sum().backward()
    true = [torch.cat(rows), twin.grad, *(w.grad for w in twins)]
    return all(torch.allclose(f, t, rtol=2e-2, atol=1e-3) for f, t in zip(found, true, strict=True))
out = [experts(d, t, s) for d in (torch.float32, torch.bfloat16) for t in (True, False) for s in (True, False)]
x, w, ends, refused = torch.ones(4, 7).npu(), torch.ones(7, 5).npu(), torch.tensor([2, 7]).npu(), None
try: torch_npu.npu_grouped_matmul([x], [w], group_list=ends, split_item=3, group_type=2)
except RuntimeError as error: refused = str(error)
print(json.dumps([out, refused]))
"""


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("version", "refuses"),
    [
        pytest.param("2.5.1", True, marks=pytest.mark.nightly("verl_npu/features/fused_ops")),
        ("2.5.1.post1", True),
        ("2.7.1", False),
    ],
)
def test_experts_have_their_gradients_with_every_torch_npu(version: str, refuses: bool) -> None:
    done = run(PROGRAM, VIRTUAL_ASCEND_TORCH_NPU_VERSION=version)
    assert done.returncode == 0, done.stderr
    right, refused = json.loads(done.stdout.splitlines()[-1])
    assert right == [True] * 8
    assert (refused is not None) is refuses
    assert ("the gradients of experts are computed one by one" in done.stderr) is refuses


def make(version: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Modules that stand in for those of a transformers: the modeling modules by the name of the model."""

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
    """What v0.8.0 does, whatever the version."""
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
