"""What workers on other hosts are given."""

from __future__ import annotations

import pytest

from verl_npu.errors import FleetError
from verl_npu.features.fleet.forwarding import forward_variables_to_workers


@pytest.fixture(autouse=True)
def activated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has something to tell its workers."""
    from verl_npu import manifest
    from verl_npu.activation import status

    monkeypatch.setattr(manifest, "_activities", [status])


def test_every_process_gets_the_layout_that_new_weights_may_be_copied_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_ASCEND_ENABLE_NZ", raising=False)
    monkeypatch.setenv("VERL_NPU_WEIGHT_SYNC_TIMEOUT", "30")
    made = forward_variables_to_workers(lambda: {"env_vars": {"MINE": "1"}})["env_vars"]
    assert made["VLLM_ASCEND_ENABLE_NZ"] == "0"
    assert made["VERL_NPU_WEIGHT_SYNC_TIMEOUT"] == "30"
    assert made["MINE"] == "1"


@pytest.mark.parametrize("asked_in", ["shell", "runtime environment"])
def test_a_layout_that_garbles_new_weights_is_refused(asked_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"VLLM_ASCEND_ENABLE_NZ": "1"} if asked_in == "runtime environment" else {}
    monkeypatch.setenv("VLLM_ASCEND_ENABLE_NZ", "0" if asked else "1")
    with pytest.raises(FleetError, match="VLLM_ASCEND_ENABLE_NZ=1: expected VLLM_ASCEND_ENABLE_NZ=0"):
        forward_variables_to_workers(lambda: {"env_vars": asked})
