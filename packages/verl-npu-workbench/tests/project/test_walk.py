"""docs/writing-a-patch.md, followed literally on an installed package: each step works as the page says."""

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


def blocks(language: str = "python") -> list[str]:
    """Return the Python of the page, in order: the patch, the names that it uses, the program, the test."""
    return [fence.text for fence in fences(PAGE.read_text()) if fence.language == language]


def commands() -> list[str]:
    return [line for fence in fences(PAGE.read_text()) if not fence.language for line in fence.text.splitlines()]


class Installed:
    """verl-npu's wheel and the page's distribution, unpacked side by side as pip would install them."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        zipfile.ZipFile(wheel).extractall(folder / "site")
        self.folder = folder
        package = folder / "source" / "my_patches"
        package.mkdir(parents=True)
        (folder / "source" / "pyproject.toml").write_text(blocks("toml")[0])
        (package / "__init__.py").write_text(blocks()[0])
        options = ("--quiet", "--no-build-isolation", "--no-deps", "--no-index", "--target", str(folder / "site"))
        made = self.run(["-m", "pip", "install", *options, str(folder / "source")])
        assert made.returncode == 0, made.stderr

    def run(self, arguments: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
        site = str(self.folder / "site")
        return python(*arguments, cwd=self.folder, clean="VERL_", **{"PYTHONPATH": site, **environment})

    def state(self, source: Path) -> str:
        """Return the state of the page's feature, by `check`."""
        answer = self.run(["-m", "verl_npu", "check", "--json", "--source", str(source)])
        (feature,) = [each for each in json.loads(answer.stdout)["features"] if each["owner"] == "my-patches"]
        assert feature["name"] == "my_memory"
        return feature["state"]


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Installed:
    return Installed(wheel, tmp_path)


def lock(installed: Installed, source: Path) -> None:
    """Run the command of the page that locks its patch."""
    (typed,) = [line for line in commands() if line.startswith("python -m verl_npu.maintain lock")]
    *options, named = typed.split()[1:]
    assert named == source.name
    answer = installed.run([*options, str(source)])
    assert answer.returncode == 0, answer.stderr


def test_a_patch_is_not_applied_until_it_is_locked_and_verified_then(
    installed: Installed, source: Callable[[str, str], Path]
) -> None:
    assert installed.state(source("verl", "v0.7.1")) == "failed"
    lock(installed, source("verl", "v0.7.1"))
    assert installed.state(source("verl", "v0.7.1")) == "pending"


@pytest.mark.upstream
def test_the_program_of_the_page_prints_that_it_is_applied(
    installed: Installed, source: Callable[[str, str], Path], importable: Callable[[str], Path]
) -> None:
    pytest.importorskip("verl")
    lock(installed, source("verl", "v0.7.1"))
    (installed.folder / "show.py").write_text(blocks()[2])
    path = os.pathsep.join([str(installed.folder / "site"), str(importable("v0.7.1"))])
    answer = installed.run(["show.py"], VERL_NPU="on", PYTHONPATH=path)
    assert "'state': 'applied'" in answer.stdout, answer.stderr


def test_the_test_of_the_page_passes(installed: Installed) -> None:
    (installed.folder / "test_one_attempt.py").write_text(blocks()[3])
    answer = installed.run(["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_one_attempt.py"])
    assert answer.returncode == 0, answer.stdout
