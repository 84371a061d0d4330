"""Whether micro batches keep to their token budget: of which verl, and with which variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_npu.plan.budget import keeps_budget
from verl_npu.registry.source.tree import SourceTree
from verl_npu.rehearse.trainer import Trainer


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A verl whose micro batches may hold more."""
    (tmp_path / "verl" / "utils").mkdir(parents=True)
    (tmp_path / "verl" / "__init__.py").touch()
    (tmp_path / "verl" / "utils" / "__init__.py").touch()
    (tmp_path / "verl" / "utils" / "seqlen_balancing.py").write_text("def rearrange_micro_batches(): ...\n")
    return tmp_path


def _trainer(**exports: str) -> Trainer:
    return Trainer("verl.trainer.main_ppo", (), (), 0, Path(), exports)


def test_verl_keeps_no_budget_by_itself(tree: Path) -> None:
    assert not keeps_budget(_trainer(), tree)


def test_it_does_from_the_version_on_that_bounds_them(tree: Path) -> None:
    (tree / "verl" / "utils" / "seqlen_balancing.py").write_text("raise ValueError\n")
    assert keeps_budget(_trainer(), tree)


def test_it_does_if_the_script_asks_for_it(tree: Path) -> None:
    assert keeps_budget(_trainer(VERL_NPU_TOKEN_BUDGET="1"), tree)


def test_it_does_if_the_user_asks_for_it(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_NPU_TOKEN_BUDGET", "1")
    assert keeps_budget(_trainer(), tree)


def test_a_folder_without_the_package_starts_the_one_that_is_installed(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "verl" / "utils" / "seqlen_balancing.py").write_text("raise ValueError\n")
    monkeypatch.setattr(SourceTree, "installed", lambda packages: SourceTree.at(tree, packages))
    (tmp_path / "elsewhere" / "verl").mkdir(parents=True)
    assert keeps_budget(_trainer(), tmp_path / "elsewhere")
