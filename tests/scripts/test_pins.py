"""The pins' environments: what upstream imports on NPUs, and no package's own requirement says."""

from __future__ import annotations

import re

import pytest
from harness.pins import PINS, Pin


@pytest.mark.parametrize("pin", PINS.values(), ids=PINS)
@pytest.mark.parametrize(
    "package",
    [
        # use_remove_padding and Ulysses on NPUs.
        "einops",
        # The agent loops.
        "cachetools",
        # The rewards of geo3k and of recipe/r1_ascend.
        "mathruler",
        # Upstream's asynchronous rollouts.
        "fastapi",
        "uvicorn",
        "pyzmq",
    ],
)
def test_an_environment_has_what_upstream_imports_on_npus(pin: Pin, package: str) -> None:
    names = {re.split(r"[\[=]", line)[0].lower() for line in pin.requirements.read_text().splitlines()}
    assert package in names


@pytest.mark.parametrize("pin", PINS.values(), ids=PINS)
def test_no_environment_has_torchvision(pin: Pin) -> None:
    # The registry's newest does not match a CPU torch, and qwen-vl-utils imports it.
    assert not re.search(r"^(torchvision|qwen-vl-utils)\b", pin.requirements.read_text(), re.M)
