"""A part of the comparison of our own torch_npu with the wheel's; `python -m tests.differential` makes all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.differential import running
from tests.differential.comparing import Kind, compared

pytestmark = pytest.mark.nightly(
    "packages/virtual-ascend/virtual_ascend/real", "packages/virtual-ascend/virtual_ascend/operators"
)

PART = ("names", "schemas", "behaviour", "call 8", "call 59", "call 66", "call 73")


def test_ours_accepts_no_call_that_the_wheel_refuses(torch_npu: Path) -> None:
    version = running.version_of(torch_npu)
    ours = running.observe(running.ours(version), only=PART)
    wheel = running.observe(running.wheel(torch_npu), only=PART)
    found = [one for one in compared(ours, wheel, {}) if one.area in ("schemas", "behaviours", "calls")]
    assert len(found) > 300
    assert [one for one in found if one.kind is Kind.FALSE_YES] == []
