"""The installed software decides whether a process belongs to a job on NPUs."""

from __future__ import annotations

import sys
import types

import pytest

from verl_npu.features.device.verdict import deny_cuda_beside_torch_npu, detect_npu_by_installed_software


@pytest.mark.parametrize(
    ("software", "visible", "cuda", "expected"),
    [
        (True, False, False, (True, False)),
        (True, True, False, (True, False)),
        (True, True, True, (True, False)),
        (False, False, False, (False, False)),
        (False, False, True, (False, True)),
    ],
    ids=["blind actor", "worker", "poisoned by transfer_to_npu", "on without software", "CUDA machine"],
)
def test_software_decides_and_not_what_is_visible(monkeypatch, software, visible, cuda, expected) -> None:
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    if software:
        monkeypatch.setitem(sys.modules, "torch_npu", types.ModuleType("torch_npu"))
    assert (detect_npu_by_installed_software(visible), deny_cuda_beside_torch_npu(cuda)) == expected
