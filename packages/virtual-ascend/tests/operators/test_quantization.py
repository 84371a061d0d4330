"""Rows are quantised to int8 by themselves, as the documentation says."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from virtual_ascend.operators import npu_dynamic_quant  # noqa: E402


def test_each_row_has_a_scale_of_its_own() -> None:
    y, scale = npu_dynamic_quant(torch.tensor([[127.0, -127, 2], [0.5, 0.25, -1]], dtype=torch.bfloat16))
    assert y.tolist() == [[127, -127, 2], [64, 32, -127]]
    assert (y.dtype, scale.dtype, scale.tolist()) == (torch.int8, torch.float32, pytest.approx([1, 1 / 127]))


def test_what_it_gives_is_what_it_got_but_for_half_a_step() -> None:
    x, smooth = torch.randn(3, 5, 64).half(), torch.rand(64).half() + 0.5
    y, scale = npu_dynamic_quant(x, smooth_scales=smooth)
    assert y.shape == x.shape
    assert scale.shape == x.shape[:-1]
    apart = y.float() * scale.unsqueeze(-1) - x.float() * smooth.float()
    assert bool((apart.abs() <= scale.unsqueeze(-1) * 0.501).all())


def test_a_row_of_zeros_stays_so() -> None:
    y, scale = npu_dynamic_quant(torch.zeros(2, 4).half())
    assert (y.count_nonzero(), scale.count_nonzero()) == (0, 0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"group_index": torch.ones(1)}, "group_index"),
        ({"dst_type": 16}, "dst_type 16"),
        ({"quant_mode": "pertensor"}, "quant_mode pertensor"),
        ({"dst_type_max": 1.0}, "dst_type_max"),
    ],
)
def test_what_is_not_written_says_so(given: dict[str, Any], said: str) -> None:
    with pytest.raises(NotImplementedError, match=f"npu_dynamic_quant: {said} is not implemented"):
        npu_dynamic_quant(torch.ones(1, 4).half(), **given)


@pytest.mark.parametrize(
    ("x", "smooth"),
    [(torch.ones(1, 4), None), (torch.ones(4).half(), None), (torch.ones(1, 4).half(), torch.ones(3).half())],
)
def test_what_does_not_go_together_is_refused(x: torch.Tensor, smooth: torch.Tensor | None) -> None:
    with pytest.raises(RuntimeError, match="npu_dynamic_quant: "):
        npu_dynamic_quant(x, smooth_scales=smooth)


def test_it_takes_a_type_by_its_name_on_an_npu(npu: ModuleType) -> None:
    y, _ = torch.ops.npu.npu_dynamic_quant(torch.ones(1, 4, device="npu").half(), dst_type=torch.int8)
    assert y.tolist() == [[127] * 4]
