"""A wheel holds all that a checkout does: it judges the same upstream alike, with its own locks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from verl_npu.features import locks_folder

PROJECT = Path(__file__).resolve().parents[1]


def check(path: Path, *arguments: str) -> tuple[str, str]:
    program = (
        "import sys; sys.argv[0] = 'verl-npu'\n"
        "from verl_npu.features import locks_folder; print(locks_folder())\n"
        "from verl_npu.cli import main; main(standalone_mode=False)"
    )
    # 1 where something drifted: what is installed here may be no pin.
    result = subprocess.run(
        [sys.executable, "-c", program, "check", "--json", *arguments],
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
        cwd=path,
    )
    assert result.returncode in (0, 1), result.stderr
    folder, _, content = result.stdout.partition("\n")
    return folder, content


def test_a_wheel_works_as_the_checkout_does(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    own, from_wheel = check(tmp_path)
    assert own == str(tmp_path / "verl_npu" / "patches")
    _, from_checkout = check(PROJECT)
    assert json.loads(from_wheel) == json.loads(from_checkout)


def test_the_wheel_holds_every_lock_and_the_device_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    locks = {
        f"verl_npu/patches/{path.relative_to(locks_folder())}"
        for path in locks_folder().rglob("*.*")
        if path.is_file()
    }
    locks.discard("verl_npu/patches/.gitkeep")
    assert locks <= names
    assert {"verl_npu/virtual/device/csrc/hccl.cpp", "verl_npu/virtual/site/torch_npu/__init__.py"} <= names
    assert not [name for name in names if name.startswith(("tests/", "scripts/", "benchmarks/"))]


@pytest.mark.parametrize("name", ["torch", "torch_npu", "verl", "transformers", "vllm"])
def test_it_asks_for_none_of_the_users_packages(wheel: Path, name: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        required = [
            line.partition(": ")[2]
            for line in archive.read(metadata).decode().splitlines()
            if line.startswith("Requires-Dist")
        ]
    assert required
    plain = [line for line in required if "extra ==" not in line]
    assert not [line for line in plain if line.split(">")[0].split("<")[0].split("=")[0].strip() == name]
