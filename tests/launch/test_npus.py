"""How many NPUs a host gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.smi import a2
from verl_npu.errors import LaunchError
from verl_npu.launch.npus import count


def test_virtual_npus_are_counted() -> None:
    assert count({"VERL_NPU_VIRTUAL": "4"}, None) == 4
    assert count({"VERL_NPU_VIRTUAL": "4", "ASCEND_RT_VISIBLE_DEVICES": "1,3"}, 2) == 2


def test_another_number_than_the_expected_one_is_refused() -> None:
    with pytest.raises(LaunchError, match="expected 8, found 4 virtual; say --npus 4"):
        count({"VERL_NPU_VIRTUAL": "4"}, 8)


def test_a_host_without_npus_is_refused() -> None:
    with pytest.raises(LaunchError, match="no command npu-smi"):
        count({"PATH": ""}, None)


def test_npu_smi_is_asked(tmp_path: Path) -> None:
    command = tmp_path / "npu-smi"
    command.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{a2()}\nEND\n")
    command.chmod(0o755)
    assert count({"PATH": str(tmp_path)}, None) == 8
