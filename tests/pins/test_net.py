"""The verdicts at the pins are those whose hashes are committed; `scripts/maintain/net.py` has all others.

What moved, `net.py record` and `net.py compare` tell.
"""

from __future__ import annotations

import os

import pytest
from maintain import net

pytestmark = pytest.mark.upstream


@pytest.mark.skipif("VERL_NPU_UPSTREAMS" not in os.environ, reason="VERL_NPU_UPSTREAMS names no checkouts of verl")
def test_the_verdicts_at_the_pins_are_those_that_are_committed() -> None:
    assert net.hashed({pin: net.at_pin(pin) for pin in net.PINS}) == net.hashes()["pins"]
