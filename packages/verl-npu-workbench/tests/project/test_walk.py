"""docs/writing-a-patch.md, followed literally on an installed package: what it says to do works as it says."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from testing.interpreter import python
from testing.pages import fences

pytestmark = pytest.mark.nightly("docs/writing-a-patch.md", "verl_npu/registry", "verl_npu/maintain")
PAGE = Path(__file__).resolve().parents[4] / "docs" / "writing-a-patch.md"


def blocks() -> list[str]:
    """The Python of the page, in order: the patch, the line of the `__init__`, the program, the test."""
    return [fence.text for fence in fences(PAGE.read_text()) if fence.language == "python"]


def commands() -> list[str]:
    return [line for fence in fences(PAGE.read_text()) if not fence.language for line in fence.text.splitlines()]


class Installed:
    """The wheel, unpacked: what pip would install, as far as the page goes."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        zipfile.ZipFile(wheel).extractall(folder / "site")
        self.folder = folder
        self.package = folder / "site" / "verl_npu"

    def run(self, arguments: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
        site = str(self.folder / "site")
        return python(*arguments, cwd=self.folder, clean="VERL_", **{"PYTHONPATH": site, **environment})

    def state(self, source: Path) -> str:
        """What `check` says of the patch of the page."""
        answer = self.run(["-m", "verl_npu", "check", "--json", "--source", str(source)])
        patches = [patch for feature in json.loads(answer.stdout)["features"] for patch in feature["patches"]]
        (state,) = [patch["state"] for patch in patches if patch["id"] == "device.one_attempt"]
        return state


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Installed:
    """An installed verl-npu with the patch of the page in it, imported as the page says."""
    made = Installed(wheel, tmp_path)
    patch, line, *_ = blocks()
    (made.package / "features" / "device" / "memory.py").write_text(patch)
    with (made.package / "features" / "device" / "__init__.py").open("a") as stream:
        stream.write(line)
    return made


def lock(installed: Installed, source: Path) -> None:
    """Run the command of the page that locks its patch."""
    (typed,) = [line for line in commands() if line.startswith("python -m verl_npu.maintain lock")]
    *options, named = typed.split()[1:]
    assert named == source.name
    answer = installed.run([*options, str(source)])
    assert answer.returncode == 0, answer.stderr


def test_a_patch_is_drifted_until_it_is_locked_and_verified_then(
    installed: Installed, source: Callable[[str, str], Path]
) -> None:
    assert installed.state(source("verl", "v0.7.1")) == "drifted"
    lock(installed, source("verl", "v0.7.1"))
    assert installed.state(source("verl", "v0.7.1")) == "pending"


@pytest.mark.upstream
def test_the_program_of_the_page_prints_that_it_is_applied(
    installed: Installed, source: Callable[[str, str], Path], importable: Callable[[str], Path]
) -> None:
    pytest.importorskip("verl")
    lock(installed, source("verl", "v0.7.1"))
    (installed.folder / "show.py").write_text(blocks()[3])
    path = os.pathsep.join([str(installed.folder / "site"), str(importable("v0.7.1"))])
    answer = installed.run(["show.py"], VERL_NPU="on", PYTHONPATH=path)
    assert "'state': 'applied'" in answer.stdout, answer.stderr


def test_the_test_of_the_page_passes(installed: Installed) -> None:
    (installed.folder / "test_one_attempt.py").write_text(blocks()[4])
    answer = installed.run(["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_one_attempt.py"])
    assert answer.returncode == 0, answer.stdout
