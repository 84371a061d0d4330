from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from verl_npu_workbench.prove.stages.units import Distance, distance  # noqa: E402

EXACT = torch.randn(4096, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_to_the_nearest_is_half_a_unit_and_leans_to_no_side(dtype: torch.dtype) -> None:
    away = distance(EXACT.to(dtype), EXACT)
    assert 0.4 < away.largest <= 0.5
    assert abs(away.lean) < 0.02
    assert away.within(away) == ""


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_towards_zero_is_seen_by_its_lean(dtype: torch.dtype) -> None:
    nearest = EXACT.to(dtype)
    bits = {2: torch.int16, 4: torch.int32}[nearest.element_size()]
    larger = nearest.double().abs() > EXACT.abs()
    cut = torch.where(larger, nearest.view(bits) - 1, nearest.view(bits)).view(dtype)
    assert "signed distance" in distance(cut, EXACT).within(distance(nearest, EXACT))


def test_a_few_bits_more_are_too_much_in_the_mean() -> None:
    nearest = EXACT.float()
    off = (nearest.view(torch.int32) + 3).view(torch.float32)
    assert "the mean distance" in distance(off, EXACT).within(distance(nearest, EXACT))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_too_much(value: float) -> None:
    found = EXACT.float()
    found[7] = value
    assert distance(found, EXACT).within(Distance(0.5, 0.2, 0.0)) != ""


def test_what_cancels_is_measured_by_what_was_summed() -> None:
    exact = torch.tensor([1.0, 1e-12], dtype=torch.float64)
    assert distance(torch.tensor([1.0, 0.0]), exact).largest < 1
