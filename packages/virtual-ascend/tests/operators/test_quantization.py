"""Rows are quantized to int8 by their own scales or by given ones, as the documentation says."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from virtual_ascend.operators import npu_dynamic_quant, npu_quantize  # noqa: E402
from virtual_ascend.operators.schemas import RESTRICTIONS  # noqa: E402


def test_each_row_has_a_scale_of_its_own() -> None:
    y, scale = npu_dynamic_quant(torch.tensor([[127.0, -127, 2], [0.5, 0.25, -1]], dtype=torch.bfloat16))
    assert y.tolist() == [[127, -127, 2], [64, 32, -127]]
    assert (y.dtype, scale.dtype, scale.tolist()) == (torch.int8, torch.float32, pytest.approx([1, 1 / 127]))


def test_quantized_rows_differ_by_half_a_step_at_most() -> None:
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
        ({"dst_type": 16}, "dst_type 16"),
        ({"quant_mode": "pertensor"}, "quant_mode pertensor"),
    ],
)
def test_what_is_not_written_says_so(given: dict[str, Any], said: str) -> None:
    with pytest.raises(NotImplementedError, match=f"npu_dynamic_quant: virtual-ascend does not implement {said}"):
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


HALF = torch.tensor([[1.0, -2.5, 300, -300], [0.5, 1.5, 2.5, 0]], dtype=torch.bfloat16)


def test_it_divides_by_the_scales_that_are_given_or_multiplies_with_them() -> None:
    """A half rounds to the even number, and a number outside int8 to the nearest one inside."""
    by, zero = torch.tensor([1.0, 2, 1, 1]).bfloat16(), torch.tensor([0.0, 0, 0, 3]).bfloat16()
    multiplied = npu_quantize(HALF, by, zero, torch.qint8, -1, False)
    assert multiplied.tolist() == [[1, -5, 127, -128], [0, 3, 2, 3]]
    assert npu_quantize(HALF, by, zero, torch.qint8, -1).tolist() == [[1, -1, 127, -128], [0, 1, 2, 3]]
    assert multiplied.dtype is torch.int8


@pytest.mark.parametrize("scales", [torch.tensor([2.0, 3.0]), torch.tensor([[2.0], [3.0]])])
def test_each_row_may_have_its_scale(scales: torch.Tensor) -> None:
    rows = [[2, -5, 127, -128], [2, 4, 8, 0]]
    assert npu_quantize(HALF, scales, None, torch.qint8, -2, False).tolist() == rows
    assert npu_quantize(HALF, 1 / scales, None, torch.qint8, 0).tolist() == rows


def test_one_scale_is_that_of_all() -> None:
    assert npu_quantize(HALF, torch.tensor([2.0]), None, torch.qint8, div_mode=False)[1].tolist() == [1, 3, 5, 0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"scales": torch.ones(3)},
            r"scales must have shape \[4\], \[1\], or \[1, 4\] for axis -1",
        ),
        ({"scales": torch.ones(4).half(), "div_mode": True}, "scales must be float32 or bfloat16"),
        ({"zero_points": torch.ones(4).half()}, "zero_points must have one of the dtypes"),
        (
            {"zero_points": torch.ones(1)},
            r"zero_points must have the same shape as scales, \(4,\), but has shape \(1,\)",
        ),
        ({"input": HALF.int()}, "input must be float32, float16 or bfloat16"),
        ({"axis": 2}, "axis 2 is out of range for an input with 2 dimensions"),
    ],
)
def test_scales_that_do_not_fit_are_refused(change: dict[str, Any], said: str) -> None:
    given = {"input": HALF, "scales": torch.ones(4), "zero_points": None, "axis": -1, "div_mode": False}
    with pytest.raises(RuntimeError, match=f"npu_quantize: {said}"):
        npu_quantize(**{**given, **change}, dtype=torch.qint8)


def test_older_versions_divide_by_scales_of_one_dimension_alone() -> None:
    (restriction,) = [each for each in RESTRICTIONS if each.operator == "npu_quantize"]
    assert restriction.applies({"scales": torch.ones(1, 4), "div_mode": True})
    assert not restriction.applies({"scales": torch.ones(4), "div_mode": True})
    assert not restriction.applies({"scales": torch.ones(1, 4), "div_mode": False})


def test_a_type_that_is_not_written_says_so() -> None:
    with pytest.raises(
        NotImplementedError, match=r"npu_quantize: virtual-ascend does not implement dtype torch\.quint4x2"
    ):
        npu_quantize(HALF, torch.ones(4), None, torch.quint4x2, -1, False)


def test_it_quantises_on_an_npu_and_takes_its_type_by_name(npu: ModuleType) -> None:
    given = (HALF.npu(), torch.ones(4, device="npu").bfloat16(), None)
    y = torch.ops.npu.npu_quantize(*given, torch.qint8, -1, False)
    assert (y.device.type, y.tolist()) == ("npu", [[1, -2, 127, -128], [0, 2, 2, 0]])
