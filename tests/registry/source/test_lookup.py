"""A full dotted name is found in a tree as Python would find it, or its first stale part is named.

Imports that cannot succeed are found in the source, but only those that are certain to fail.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from verl_npu.features.rollout.unmet import Decide, unmet_imports
from verl_npu.registry.source.lookup import missing_module, resolve
from verl_npu.registry.source.tree import SourceTree

from ..conftest import Package

MODELS = """
import other
from .base import Base, helper
from ._hidden import Moved as Renamed

TABLE = {}

class Own:
    @staticmethod
    def made(): ...

    def forward(self):
        def inner(): ...

    class Inner:
        def deep(self): ...

class Inheriting(Base): ...

class Stranger(other.Thing): ...

class Nothing(object): ...

def function(): ...
    # a comment at no place

if something:
    def conditional(): ...
"""


@pytest.fixture
def models(package: Package) -> Package:
    package.write("up.models.__init__", "")
    package.write("up.models.base", "class Base:\n    def inherited(self): ...\n\ndef helper(): ...\n")
    package.write("up.models._hidden", "class Moved:\n    def forward(self): ...\n")
    package.write("up.models.qwen", MODELS)
    return package


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("Own.forward", "up.models.qwen:Own.forward"),
        ("Own.made", "up.models.qwen:Own.made"),
        ("Own.Inner.deep", "up.models.qwen:Own.Inner.deep"),
        ("Inheriting.inherited", "up.models.qwen:Inheriting.inherited"),
        ("function", "up.models.qwen:function"),
        ("conditional", "up.models.qwen:conditional"),
        ("TABLE", "up.models.qwen:TABLE"),
        ("helper", "up.models.base:helper"),
        ("Renamed.forward", "up.models._hidden:Moved.forward"),
        # Nobody can tell which attributes a class of another package has.
        ("Stranger.forward", "up.models.qwen:Stranger.forward"),
    ],
)
def test_what_is_there_is_found_where_it_is_defined(place: str, name: str, models: Package) -> None:
    found = resolve(f"up.models.qwen.{place}", models.tree())
    assert (found.name, found.missing) == (name, "")


@pytest.mark.parametrize(
    ("place", "missing"),
    [
        ("up.models.qwen.Gone.forward", "up.models.qwen:Gone"),
        ("up.models.qwen.Own.gone", "up.models.qwen:Own.gone"),
        ("up.models.qwen.Own.inner", "up.models.qwen:Own.inner"),
        ("up.models.qwen.Own.Inner.gone", "up.models.qwen:Own.Inner.gone"),
        ("up.models.qwen.Nothing.forward", "up.models.qwen:Nothing.forward"),
        ("up.models.qwen.Inheriting.gone", "up.models.qwen:Inheriting.gone"),
        ("up.models.qwen.function.made", ""),
        ("up.models.gone.Own.forward", "up.models.gone"),
        ("elsewhere.x", ""),
    ],
)
def test_the_stale_part_is_named(place: str, missing: str, models: Package) -> None:
    assert resolve(place, models.tree()).missing == missing


def test_a_mention_is_no_definition(models: Package) -> None:
    models.write("up.models.text", '"""class Gone is described here."""\nprint("Gone")\n')
    assert resolve("up.models.text.Gone", models.tree()).missing == "up.models.text:Gone"


@pytest.mark.parametrize(
    "source",
    ["from .base import *\n", "def __getattr__(name): ...\n", "import sys\nsys.modules[__name__] = Lazy()\n"],
)
def test_of_a_module_that_makes_its_names_nothing_is_said(source: str, models: Package) -> None:
    models.write("up.models.lazy", source)
    missing = resolve("up.models.lazy.Anything", models.tree()).missing
    # The names that the star brings can be looked up.
    assert missing == ("up.models.lazy:Anything" if "*" in source else "")


def test_a_lazy_package_has_what_it_imports_for_type_checkers(models: Package) -> None:
    lazy = "if TYPE_CHECKING:\n    from .base import *\nelse:\n    sys.modules[__name__] = Lazy()\n"
    models.write("up.models.__init__", lazy)
    assert resolve("up.models.Base", models.tree()).missing == ""
    assert resolve("up.models.modeling", models.tree()).missing == "up.models.modeling"


def test_the_first_module_that_is_not_there_is_named(models: Package) -> None:
    assert missing_module("up.models.qwen", models.tree()) == ""
    assert missing_module("up.modells.qwen", models.tree()) == "up.modells"
    assert missing_module("elsewhere.qwen", models.tree()) == ""


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


def test_a_module_is_found_beside_a_folder_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "pkg" / "config" / "loss").mkdir(parents=True)
    (tmp_path / "pkg" / "config" / "loss" / "loss.yaml").touch()
    for name in ("__init__.py", "config/__init__.py", "config/loss.py"):
        (tmp_path / "pkg" / name).touch()
    tree = SourceTree.at(tmp_path, ("pkg",))
    assert list(tree.modules_below("pkg")) == ["pkg", "pkg.config", "pkg.config.loss"]
    (tmp_path / "pkg" / "config" / "loss" / "__init__.py").touch()
    (tmp_path / "pkg" / "config" / "loss" / "kl.py").touch()
    tree = SourceTree.at(tmp_path, ("pkg",))
    assert list(tree.modules_below("pkg.config")) == ["pkg.config", "pkg.config.loss", "pkg.config.loss.kl"]
