"""The hook of VERL_NPU_COMPARE_LAYERS is a patch only in a job that sets this variable."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = "from verl_npu_workbench.layers.contribution import contribution; print(*contribution.features)"


@pytest.mark.parametrize(("every", "features"), [("", ""), ("0", ""), ("10", "layers")])
def test_the_feature_is_contributed_only_if_the_variable_is_set(
    every: str, features: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_NPU_COMPARE_LAYERS", every)
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == features
