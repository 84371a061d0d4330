"""Imports that cannot succeed are found in the source, and only those that are certain."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from verl_npu.registry.source.imports import Decide, unmet_imports
from verl_npu.registry.source.tree import SourceTree


def undecided(test: ast.expr) -> None:
    return None


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name, text in {
        "mine/__init__.py": "",
        "mine/part.py": "from theirs.gone import thing",
        "theirs/__init__.py": "from .there import thing\ndef __getattr__(name): ...",
        "theirs/there.py": "thing = 1",
        "theirs/library.abi3.so": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def unmet(site: Path, source: str, decide: Decide = undecided) -> list[tuple[str, int, str]]:
    (site / "mine" / "start.py").write_text(source)
    tree = SourceTree.at(site, ("mine", "theirs"))
    return [(u.module, u.line, u.missing) for u in unmet_imports(["mine.start"], "mine", "theirs", tree, decide)]


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("import theirs.gone", "theirs.gone"),
        ("from theirs.gone import thing", "theirs.gone"),
        ("from theirs.there import other", "theirs.there:other"),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    import theirs.gone", "theirs.gone"),
    ],
)
def test_an_import_of_what_is_not_there_is_found(site: Path, source: str, missing: str) -> None:
    assert [found for _, _, found in unmet(site, source)] == [missing]


@pytest.mark.parametrize(
    "source",
    [
        "from theirs.there import thing",
        "from theirs.there import *",
        "from theirs import made_when_asked_for",
        "try:\n    import theirs.gone\nexcept ImportError: pass",
        "if version():\n    import theirs.gone",
        "if typing.TYPE_CHECKING:\n    import theirs.gone",
        "def later():\n    import theirs.gone",
        "import another.gone",
        "import theirs.library",
        "from theirs import library",
        "from theirs.library import anything",
    ],
)
def test_what_is_there_or_is_not_certain_passes(site: Path, source: str) -> None:
    assert unmet(site, source) == []


@pytest.mark.parametrize("source", ["import mine.part", "from mine import part", "from .part import name"])
def test_the_modules_that_it_imports_of_its_own_package_count(site: Path, source: str) -> None:
    assert unmet(site, source) == [("mine.part", 1, "theirs.gone")]


def test_modules_that_import_each_other_end(site: Path) -> None:
    (site / "mine" / "part.py").write_text("import mine.start")
    assert unmet(site, "import mine.part") == []


@pytest.mark.parametrize(("holds", "missing"), [(True, ["theirs.gone"]), (False, ["theirs.lost"]), (None, [])])
def test_a_condition_that_can_be_decided_is(site: Path, holds: bool | None, missing: list[str]) -> None:
    source = "if old():\n    import theirs.gone\nelse:\n    import theirs.lost"
    assert [found for _, _, found in unmet(site, source, lambda test: holds)] == missing
