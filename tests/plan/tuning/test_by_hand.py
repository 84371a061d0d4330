"""Jobs of fine-tuning by the formula alone: on both sides of the memory, and none near it."""

from __future__ import annotations

import pytest

from ..by_hand import MARGIN, MEMORY
from .by_hand import FITTING, NOT_FITTING, Tuning, needed


@pytest.mark.parametrize("job", FITTING, ids=lambda job: job.name)
def test_it_fits_by_hand(job: Tuning) -> None:
    assert needed(job) < (1 - MARGIN) * MEMORY["a2"]


@pytest.mark.parametrize("job", NOT_FITTING, ids=lambda job: job.name)
def test_it_does_not_fit_by_hand(job: Tuning) -> None:
    assert needed(job) > (1 + MARGIN) * MEMORY["a2"]
