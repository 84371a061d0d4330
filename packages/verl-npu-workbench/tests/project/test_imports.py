"""Arrows between modules go one way: by the contracts in pyproject.toml, which docs/reference/modules.md draws."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from maintain import design_page
from testing.interpreter import python

PROJECT = Path(__file__).resolve().parents[4]
PACKAGES = (
    PROJECT / "verl_npu",
    PROJECT / "packages/verl-npu-workbench/verl_npu_workbench",
    PROJECT / "packages/virtual-ascend/virtual_ascend",
)

LINT = "from importlinter.cli import lint_imports_command as main; main()"

# A forbidden arrow, by the contract that it breaks.
ARROWS = {
    "The commands use the plugin, and the plugin does not know them": (
        "verl_npu/features/upstreams.py",
        "verl_npu.cli.terminal",
    ),
    "The plugin and the virtual Ascend know nothing of the workbench": (
        "verl_npu/features/upstreams.py",
        "verl_npu_workbench.logs",
    ),
    "A part of the workbench uses only what stands below it": (
        "verl_npu_workbench/logs/__init__.py",
        "verl_npu_workbench.plan",
    ),
    "The registry knows nothing": ("verl_npu/registry/state.py", "verl_npu.reporting"),
    "The virtual Ascend knows nothing of verl-npu": ("virtual_ascend/errors.py", "verl_npu.errors"),
    "Only what simulates imports the virtual Ascend": ("verl_npu/manifest.py", "virtual_ascend.errors"),
    "No modules import each other in a circle": ("verl_npu/errors.py", "verl_npu.features.upstreams"),
}


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the packages in a folder against the contracts."""
    words = ("-B", "-c", LINT, "--no-cache", "--config", str(PROJECT / "pyproject.toml"))
    return python(*words, cwd=folder, PYTHONPATH=str(folder), COLUMNS="200")


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(package, tmp_path / package.name, ignore=shutil.ignore_patterns("__pycache__", "prebuilt"))
    return tmp_path


def test_every_arrow_is_one_that_the_contracts_allow(copies: Path) -> None:
    done = lint(copies)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_arrow_that_is_added_breaks_its_contract(copies: Path) -> None:
    for file, imported in ARROWS.values():
        with (copies / file).open("a") as module:
            module.write(f"\n\ndef _added() -> None:\n    import {imported}  # noqa\n")
    done = lint(copies)
    broken = [line for line in done.stdout.splitlines() if line.endswith("BROKEN")]
    assert done.returncode == 1, done.stdout + done.stderr
    assert [name for name in ARROWS if not any(line.startswith(name) for line in broken)] == []


@pytest.mark.parametrize(("language", "page"), design_page.PAGES.items())
def test_the_table_of_the_design_is_made_from_the_contracts(language: str, page: Path) -> None:
    text = page.read_text()
    assert text == design_page.render(text, language)


def test_the_picture_of_the_layers_is_drawn_from_the_contracts() -> None:
    assert design_page.PICTURE.read_text() == design_page.picture()


def test_only_what_passes_on_the_names_of_others_lists_names() -> None:
    folders = (*PACKAGES, PROJECT / "scripts", PROJECT / "benchmarks")
    modules = {path for folder in folders for path in folder.rglob("*.py") if "\n__all__ = " in path.read_text()}
    # The virtual NPU's torch_npu has the names of the real one.
    others = modules - {PACKAGES[0] / "registry/facade.py", *PACKAGES[2].glob("site*/**/*.py")}
    assert sorted(path for path in others if path.name != "__init__.py") == []
