"""What the interpreter knows of upstream's objects, sections and registries, and what it gives up."""

from __future__ import annotations

from pathlib import Path

import pytest
from verl_npu_workbench.jobs.asserted import instance, refused, refused_sections, section
from verl_npu_workbench.jobs.settings import Settings

from verl_npu.registry.source.tree import SourceTree, Target

WORKER = """
import elsewhere
from dataclasses import dataclass
from elsewhere import Base
from .parts import Part

class Worker:
    def __init__(self, config):
        self.config = config

    def start(self):
        self.loss = elsewhere.loss()
        self.wrapped()
        assert self.config.size == 1, "the size"
        assert self.config.changed == 1, "nobody can tell what the method did"
        assert self.state == 1, "nor here"
        assert self.role == "actor", "the role"
        elsewhere.change(self)
        assert self.role == "actor", "another module may change all"

    @elsewhere.wraps
    def wrapped(self):
        self.config.changed = self.state = 2

@dataclass
class Config:
    size: int = 1
    part: object = None

    def __post_init__(self):
        if elsewhere.knows(self.size):
            object.__setattr__(self, "part", Part())
        assert self.size == 1, "only one"
        assert self.part is None, "nobody can tell"

@dataclass
class Extended(elsewhere.Base):
    size: int = 1

@dataclass
class Grown(Config): ...

@dataclass
class Mixed(Grown, elsewhere.Base): ...

@dataclass
class MixedByName(Grown, Base): ...
"""
PARTS = """
class Registry:
    _parts = {}

    @classmethod
    def register(cls, name):
        def add(part):
            cls._parts[name] = part
            return part
        return add

    @classmethod
    def get(cls, name):
        if name not in cls._parts:
            raise ValueError(f"no {name} in {sorted(cls._parts)}")
        return cls._parts[name]

    @classmethod
    def new(cls, name, **given):
        return cls.get(name)(**given)

@Registry.register("one")
class Part: ...
"""
OTHER = """
from .parts import Registry

@Registry.register("other")
class Other: ...
"""


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    (tmp_path / "verl").mkdir()
    for name, text in {"__init__": "", "worker": WORKER, "parts": PARTS, "other": OTHER}.items():
        (tmp_path / "verl" / f"{name}.py").write_text(text)
    return SourceTree.at(tmp_path, ("verl",))


UNFOLLOWED = "self.wrapped()"
CHANGES = {
    "a method of a section": (UNFOLLOWED, 'self.config.part.update({"size": 1})'),
    "another name": (UNFOLLOWED, "part = self.config.part; part.size = 1"),
    "a name of a name": (UNFOLLOWED, "config = self.config; part = config.part; part.pop('size')"),
    "a whole section": (UNFOLLOWED, "self.config.part = elsewhere.part()"),
    "a whole section at once": ("self.config.part = elsewhere.part()", "pass"),
    "a section under a name": ('part = self.config.part; part.update({"size": 1})', "pass"),
    "a section of an argument": ('config = self.config; config.part.update({"size": 1})', "pass"),
    "any attribute": ("object.__setattr__(self, elsewhere.name(), 1)", "pass"),
    "any attribute perhaps": ("elsewhere.called() or object.__setattr__(self, elsewhere.name(), 1)", "pass"),
}
CHANGING = """
import elsewhere

class Worker:
    def start(self):
        {start}
        assert self.config.part.size == 1, "nobody can tell"

    @elsewhere.wraps
    def wrapped(self):
        {wrapped}
"""


@pytest.mark.parametrize(("start", "wrapped"), CHANGES.values(), ids=CHANGES.keys())
def test_what_may_be_changed_is_unknown(start: str, wrapped: str, tree: SourceTree, tmp_path: Path) -> None:
    (tmp_path / "verl" / "changing.py").write_text(CHANGING.format(start=start, wrapped=wrapped))
    worker = instance(Target("verl.changing", "Worker"), {"config": section(Settings({"part.size": 2}))})
    assert list(refused(Target("verl.changing", "Worker.start"), [worker], tree)) == []


def test_a_method_that_is_not_followed_changes_what_it_assigns(tree: SourceTree) -> None:
    config = section(Settings({"config.size": 2, "config.changed": 2}), "config")
    worker = instance(Target("verl.worker", "Worker"), {"config": config, "state": 2, "role": "critic"})
    assert list(refused(Target("verl.worker", "Worker.start"), [worker], tree)) == ["the size", "the role"]


def test_a_frozen_object_keeps_what_is_not_set(tree: SourceTree) -> None:
    settings = Settings({"one._target_": "verl.worker.Config", "one.size": 2})
    assert list(refused_sections(settings, ["one"], tree)) == [("one", "only one")]


SICE = ["unexpected keyword argument 'sice'"]


@pytest.mark.parametrize(
    ("kind", "said"), [("Config", SICE), ("Grown", SICE), ("Extended", []), ("Mixed", []), ("MixedByName", [])]
)
def test_a_field_is_unknown_if_all_of_a_class_is_known(kind: str, said: list[str], tree: SourceTree) -> None:
    settings = Settings(
        {"one._target_": f"verl.worker.{kind}", "one.sice": 1, "one.zise": 1, "one._convert_": "all", "other": 1}
    )
    found = [message for _key, message in refused_sections(settings, ["one"], tree)]
    assert [each.partition("got an ")[2] for each in found] == said


@pytest.mark.parametrize(
    ("name", "said"), [("one", []), ("other", []), ("another", ["no another in ['one', 'other']"])]
)
def test_a_registry_of_a_class_has_the_names_of_all_modules(name: str, said: list[str], tree: SourceTree) -> None:
    assert list(refused(Target("verl.parts", "Registry.new"), [name], tree)) == said


def test_a_registry_with_a_name_that_only_a_job_knows_refuses_none(tree: SourceTree, tmp_path: Path) -> None:
    (tmp_path / "verl" / "later.py").write_text("from .parts import Registry\nRegistry.register(name())(object)\n")
    assert list(refused(Target("verl.parts", "Registry.new"), ["another"], tree)) == []


REGISTERED = {
    "by another name of the class": ('@Sub.register("new")', []),
    "by the name of a module": ('@verl.parts.Registry.register("new")', []),
    "by a keyword": ('@Registry.register(name="new")', []),
    "by something": ('@elsewhere().register("new")', []),
    "elsewhere": ('@elsewhere.Registry2.register("new")', ["no new in ['one', 'other']"]),
    "in another registry": ('@Dispatch.register("new")', ["no new in ['one', 'other']"]),
}


@pytest.mark.parametrize(("by", "said"), REGISTERED.values(), ids=REGISTERED.keys())
def test_a_name_may_be_registered_in_several_ways(by: str, said: list[str], tree: SourceTree, tmp_path: Path) -> None:
    (tmp_path / "verl" / "sub.py").write_text("from verl.parts import Registry as Base\nclass Sub(Base): ...")
    text = f"import elsewhere\nimport verl.parts\nfrom .sub import Sub\n\nclass Dispatch: ...\n\n{by}\nclass New: ..."
    (tmp_path / "verl" / "new.py").write_text(text)
    assert list(refused(Target("verl.parts", "Registry.new"), ["new"], tree)) == said
