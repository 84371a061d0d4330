"""The verdicts at the pins match the committed hashes; `scripts/maintain/net.py` checks the rest.

`net.py record` and `net.py compare` show what changed.
"""

from __future__ import annotations

import os

import pytest
from maintain import net

pytestmark = [
    pytest.mark.upstream,
    pytest.mark.skipif("VERL_NPU_UPSTREAMS" not in os.environ, reason="VERL_NPU_UPSTREAMS names no checkouts of verl"),
]
NIGHTLY = pytest.mark.nightly("patches", "verl_npu/registry")


@pytest.mark.parametrize("pin", net.PINS)
def test_the_verdicts_at_a_pin_are_those_that_are_committed(pin: str) -> None:
    assert net.hashed({pin: net.at_pin(pin)})[pin] == net.hashes()["pins"][pin]


@pytest.mark.parametrize("pin", [pytest.param(pin, marks=NIGHTLY) for pin in net.PINS])
def test_they_are_the_same_if_no_lock_answers_for_the_pin(pin: str) -> None:
    assert net.hashed({pin: net.at_edited_pin(pin)})[pin] == net.hashes()["pins"][pin]
