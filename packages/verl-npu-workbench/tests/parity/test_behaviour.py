"""Effects of patched models besides equal results: adapters, hooks, sharding, missing operators, refusals."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from verl_npu_workbench.prove.parity.compare import BFLOAT16_UNIT, BFLOAT16_UNITS, FLOAT32  # noqa: E402

from .processes import side  # noqa: E402

NEEDS_VERL = pytest.mark.skipif(find_spec("verl") is None, reason="needs verl")
pytestmark = [pytest.mark.virtual, pytest.mark.upstream, NEEDS_VERL]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("behaviour") / "seen"
    side("npu", path, module="tests.parity.behaviour")
    return torch.load(path)


def test_adapters_on_experts_are_trained_as_upstream_does(seen) -> None:
    pytest.importorskip("peft")
    found = seen["adapters_on_experts"]
    assert found["away"] < FLOAT32
    assert all("lora" in name for name in found["gradients"] if name != "logits")
    assert "npu_grouped_matmul" not in found["calls"]


def test_gradient_checkpointing_computes_everything_again(seen) -> None:
    found = seen["checkpointing"]
    assert found["away"] < FLOAT32
    # Twice the three products of two layers forward, and their six backward; once in a process, torch_npu's product
    # for the backward pass is tried.
    assert found["calls"]["npu_grouped_matmul"] - (2 * 2 * 3 + 2 * 6) in (0, 1)


def test_a_hook_on_an_expert_is_called_and_other_layers_stay_fused(seen) -> None:
    found = seen["hooks_on_experts"]
    assert found["away"] < FLOAT32
    assert found["seen"] == ["cpu", "npu"]
    assert found["calls"]["npu_moe_token_permute"] == 1


def test_a_sharded_model_is_fused(seen) -> None:
    assert seen["sharded"]["away"] < FLOAT32
    assert seen["sharded"]["calls"]["npu_moe_token_permute"] == 2


def test_other_architectures_stay_untouched(seen) -> None:
    assert seen["other_architectures"]["calls"] == {}


def test_what_needs_a_missing_operator_goes_upstreams_way(seen) -> None:
    found = seen["missing_operators"]["product"]
    assert found["away"] < FLOAT32
    assert set(found["calls"]) == {"npu_swiglu"}


def test_tokens_are_permuted_by_plain_torch_where_the_operators_are_missing(seen) -> None:
    found = seen["missing_operators"]["permutation"]
    assert found["away"] < FLOAT32
    # Three forward, and six backward.
    assert found["calls"] == {"npu_grouped_matmul": 9, "npu_swiglu": 1}


def test_a_norm_gives_upstreams_dtype_for_every_pair(seen) -> None:
    for pair, (same, away) in seen["dtypes_of_norms"].items():
        assert same, pair
        assert away < BFLOAT16_UNIT, pair


def test_each_operator_is_within_two_units_of_float32(seen) -> None:
    assert {name: units for name, units in seen["units_of_bfloat16"].items() if units > BFLOAT16_UNITS} == {}


def test_experts_follow_autocast(seen) -> None:
    found = seen["autocast"]
    assert found["dtype"] == "torch.float32"
    assert found["calls"]["npu_grouped_matmul"] == 3
    # Compared with float32 weights, whose own rounding comes on top of the products'.
    assert found["units"] < 2 * BFLOAT16_UNITS


def test_a_sliding_window_that_would_be_ignored_is_an_error_that_names_it(seen) -> None:
    assert seen["sliding_windows"]["within"] == "computed"
    assert seen["sliding_windows"]["beyond"].startswith("JobSettingError: ")
    for part in ("sliding_window=6", "7 tokens", "use_sliding_window=False", "VERL_NPU_DISABLE=attention"):
        assert part in seen["sliding_windows"]["beyond"]


@pytest.mark.parametrize("beside", ["kernels", "dummy"])
def test_flash_attention_is_admitted_beside(beside: str, seen) -> None:
    assert seen["admission"][beside] == "flash_attention_2"


def test_upstreams_log_probabilities_work_without_flash_attn(seen) -> None:
    assert seen["log_probabilities"] < FLOAT32
