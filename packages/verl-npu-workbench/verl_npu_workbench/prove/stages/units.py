"""Measures the error of results relative to the float64 results, in units in the last place (ULP), and judges this
error.

The unit is the distance between neighbouring numbers of the type. It is taken at the exact number, or at the tensor's
root mean square if that is larger, because a sum whose terms cancel has an error as large as an error of its terms.
The NPU's error may be a few times the CPU's error in the same type. Incorrect rounding is visible in the mean signed
error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..corpus import SAMPLES, Result

if TYPE_CHECKING:
    from torch import Tensor, dtype

LEAST_LARGEST, LEAST_MEAN, LEAST_LEAN = 4.0, 1.0, 0.25
"""Distances in ULP that are always allowed: the largest, the mean, and the mean signed distance."""
TIMES_LARGEST, TIMES_MEAN = 10.0, 2.0
"""How many times the CPU's own distance is allowed, as in msprobe's comparison with a benchmark."""


@dataclass(frozen=True, slots=True)
class Distance:
    """The error of a result relative to the float64 result, in ULP."""

    largest: float
    mean: float
    lean: float
    """The mean signed distance. It is positive if numbers are rounded away from zero."""

    def within(self, cpu: Distance) -> str:
        """Describe the errors that exceed their limits, or return an empty string if every error is within its limit.
        Each limit depends on the error of the same computation on the CPU."""
        allowed = {
            "the largest distance": (self.largest, max(LEAST_LARGEST, TIMES_LARGEST * cpu.largest)),
            "the mean distance": (self.mean, max(LEAST_MEAN, TIMES_MEAN * cpu.mean)),
            "the mean signed distance": (abs(self.lean), max(LEAST_LEAN, TIMES_MEAN * abs(cpu.lean))),
        }
        # NaN exceeds any limit.
        over = [
            f"{name} is {found:.3g} units of the last place, limit {most:.3g}"
            for name, (found, most) in allowed.items()
            if not found <= most
        ]
        return "; ".join(over)


def distance(found: Tensor, exact: Tensor) -> Distance:
    """Return the error of a result relative to the float64 result."""
    import torch

    found, exact = found.detach().cpu(), exact.detach().cpu()
    if found.numel() == 0:
        return Distance(0.0, 0.0, 0.0)
    if not found.dtype.is_floating_point:
        away = (found.to(torch.float64) - exact.to(torch.float64)).abs()
        return Distance(float(away.max()), float(away.mean()), 0.0)
    wide = found.to(torch.float64)
    both = torch.isfinite(wide) & torch.isfinite(exact)
    same = both | (wide == exact) | (torch.isnan(wide) & torch.isnan(exact))
    if not bool(same.all()):
        return Distance(float("inf"), float("inf"), 0.0)
    away = torch.where(both, wide - exact, torch.zeros_like(exact))
    size = torch.where(both, exact.abs(), torch.zeros_like(exact))
    typical = size.square().mean().sqrt()
    units = _unit(torch.maximum(size, typical), found.dtype)
    counted = away / units
    lean = (counted * exact.sign()).nan_to_num().mean()
    return Distance(float(counted.abs().max()), float(counted.abs().mean()), float(lean))


def _unit(size: Tensor, kind: dtype) -> Tensor:
    import torch

    numbers = torch.finfo(kind)
    _, exponent = torch.frexp(size.clamp(min=numbers.smallest_normal))
    return torch.ldexp(torch.full_like(size, numbers.eps), exponent - 1)


def result_of(name: str, found: Tensor, units: Mapping[str, float]) -> Result:
    """Return the properties of a tensor that go into the record: dtype, shape, digest, a sample of its values, and
    `units`."""
    import torch

    host = found.detach().cpu().contiguous()
    flat = host.reshape(-1)
    step = max(flat.numel() // SAMPLES, 1)
    sample = flat[::step][:SAMPLES].to(torch.float64).nan_to_num()
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return Result(
        name=name,
        dtype=str(found.dtype),
        shape=str(list(found.shape)),
        digest=hashlib.sha256(data).hexdigest()[:32],
        sample=tuple(sample.tolist()),
        units=dict(units),
    )
