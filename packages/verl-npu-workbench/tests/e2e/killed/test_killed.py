"""Jobs of which a process is killed in each phase: each ends, or its hang has a name, and the next job resumes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from verl_npu_workbench.diagnosis.judgement import Conclusion

from .striking import CHECKOUT, FAULTS, Fault, row, strike

NIGHTLY = pytest.mark.nightly("verl_npu_workbench/diagnosis", "verl_npu/features/weight_sync", "tests/e2e/killed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("killed")


@pytest.mark.e2e
@NIGHTLY
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_it_ends_or_its_hang_has_a_name(fault: Fault, folder: Path, pin: str, heeds_ctrl_c: None) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    if fault.job == "one_step_off" and not CHECKOUT.is_dir():
        pytest.skip("set VERL_NPU_UPSTREAMS to the folder with a checkout verl-ccd7d934")
    struck = strike(fault, folder)
    assert struck.pid, f"it never came to the phase: {struck.log}"
    assert struck.said is not None
    named = struck.said.root is not None and struck.said.verdict is not Conclusion.NONE
    assert named or struck.hang.get("verdict") in ("hangs", "stands still"), row(struck)
    assert not struck.cut_short
