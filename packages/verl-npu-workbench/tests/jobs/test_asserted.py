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


def test_a_method_that_is_not_followed_changes_what_it_assigns(tree: SourceTree) -> None:
    config = section(Settings({"config.size": 2, "config.changed": 2}), "config")
    worker = instance(Target("verl.worker", "Worker"), {"config": config, "state": 2, "role": "critic"})
    assert list(refused(Target("verl.worker", "Worker.start"), [worker], tree)) == ["the size", "the role"]


def test_a_frozen_object_keeps_what_is_not_set(tree: SourceTree) -> None:
    settings = Settings({"one._target_": "verl.worker.Config", "one.size": 2})
    assert list(refused_sections(settings, ["one"], tree)) == [("one", "only one")]


@pytest.mark.parametrize(("kind", "said"), [("Config", ["unexpected keyword argument 'sice'"]), ("Extended", [])])
def test_a_field_is_unknown_if_all_of_a_class_is_known(kind: str, said: list[str], tree: SourceTree) -> None:
    settings = Settings({"one._target_": f"verl.worker.{kind}", "one.sice": 1, "one._convert_": "all", "other": 1})
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
