"""A full dotted name is found in a tree as Python would find it, or the first part of it that is stale is named."""

from __future__ import annotations

import pytest

from verl_npu.registry.source.place import find_place, missing_module

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
        # What a class of another package has cannot be told.
        ("Stranger.forward", "up.models.qwen:Stranger.forward"),
    ],
)
def test_what_is_there_is_found_where_it_is_defined(place: str, name: str, models: Package) -> None:
    found = find_place(f"up.models.qwen.{place}", models.tree())
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
    assert find_place(place, models.tree()).missing == missing


def test_a_mention_is_no_definition(models: Package) -> None:
    models.write("up.models.text", '"""class Gone is described here."""\nprint("Gone")\n')
    assert find_place("up.models.text.Gone", models.tree()).missing == "up.models.text:Gone"


@pytest.mark.parametrize(
    "source",
    ["from .base import *\n", "def __getattr__(name): ...\n", "import sys\nsys.modules[__name__] = Lazy()\n"],
)
def test_of_a_module_that_makes_its_names_nothing_is_said(source: str, models: Package) -> None:
    models.write("up.models.lazy", source)
    missing = find_place("up.models.lazy.Anything", models.tree()).missing
    # What the star brings can be looked up.
    assert missing == ("up.models.lazy:Anything" if "*" in source else "")


def test_a_lazy_package_has_what_it_imports_for_type_checkers(models: Package) -> None:
    lazy = "if TYPE_CHECKING:\n    from .base import *\nelse:\n    sys.modules[__name__] = Lazy()\n"
    models.write("up.models.__init__", lazy)
    assert find_place("up.models.Base", models.tree()).missing == ""
    assert find_place("up.models.modeling", models.tree()).missing == "up.models.modeling"


def test_the_first_module_that_is_not_there_is_named(models: Package) -> None:
    assert missing_module("up.models.qwen", models.tree()) == ""
    assert missing_module("up.modells.qwen", models.tree()) == "up.modells"
    assert missing_module("elsewhere.qwen", models.tree()) == ""
