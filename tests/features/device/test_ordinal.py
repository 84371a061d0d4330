"""The index of a worker's own NPU among those that it sees."""

from __future__ import annotations

import pytest

from verl_npu.errors import HiddenDeviceError
from verl_npu.features.device.ordinal import ordinal


@pytest.mark.parametrize(
    ("assigned", "visible", "index"),
    [("3", None, 3), ("3", "1,3", 1), ("1", "1,3", 0), ("0", "0", 0), ("2", "3, 2", 1)],
)
def test_an_npu_has_the_index_of_its_place_among_the_visible_ones(assigned: str, visible: str, index: int) -> None:
    assert ordinal(assigned, visible) == index


def test_an_npu_that_the_worker_cannot_see_is_an_error() -> None:
    with pytest.raises(HiddenDeviceError, match=r"NPU 2, which Ray assigned.*'1,3'.*before `ray start`"):
        ordinal("2", "1,3")
