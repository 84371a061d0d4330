"""A target that is gone gets a candidate if something in the tree is like it, and none if nothing is."""

from __future__ import annotations

import textwrap

import pytest

from verl_npu.registry.judge.lock import Lock, Record, record_lock
from verl_npu.registry.judge.proposal import Proposal, propose
from verl_npu.registry.patch import Feature, Upstream
from verl_npu.registry.source.probe import Mentions

from ..conftest import Package

UP = Upstream("up", ("up",))
RUN = """
    def run(config, worker=None):
        prepare(config)
        made = worker or build(config)
        for step in range(config.steps):
            made.step(step)
        return made
"""
OTHER = """
    def other(config, worker=None):
        load(config)
        raise ValueError(worker)
"""
CLASS = """
    class Engine:
        def start(self, port):
            self.port = port
            self.socket = bind(port)
            self.socket.listen()
            return self.socket
"""


@pytest.fixture
def feature(why: dict[str, str]) -> Feature:
    made = Feature("feature", "a feature")
    made.wrap("up.main:run", retired_by=Mentions("up.main:run", "npu"), **why)(run)
    made.wrap("up.engine:Engine.start", retired_by=Mentions("up.engine:Engine.start", "npu"), **why)(start)
    return made


def run(original: object, config: object, worker: object = None) -> None: ...


def start(original: object, self: object, port: int) -> None: ...


@pytest.fixture
def lock(package: Package, feature: Feature) -> Lock:
    package.write("up.main", RUN)
    package.write("up.engine", CLASS)
    return record_lock(UP, "v1", "v1", package.tree(), list(feature))


def proposals(package: Package, feature: Feature, lock: Lock) -> dict[str, Proposal]:
    return propose(list(feature), UP, package.tree(), [lock])


def of_run(package: Package, feature: Feature, lock: Lock) -> str:
    found = proposals(package, feature, lock).get("feature.run")
    return str(found.target) if found else ""


def test_what_is_there_has_no_candidate(package: Package, feature: Feature, lock: Lock) -> None:
    assert proposals(package, feature, lock) == {}


def test_a_renamed_target_is_found_in_its_module(package: Package, feature: Feature, lock: Lock) -> None:
    package.write("up.main", RUN.replace("def run(", "def train("))
    assert of_run(package, feature, lock) == "up.main:train"


def test_a_moved_target_is_found_though_it_changed_a_little(package: Package, feature: Feature, lock: Lock) -> None:
    package.write("up.main", "")
    package.write("up.entry", RUN.replace("prepare(config)", "prepare(config, now=True)"))
    assert of_run(package, feature, lock) == "up.entry:run"


def test_a_target_of_a_renamed_class_is_found_in_it(package: Package, feature: Feature, lock: Lock) -> None:
    package.write("up.engine", CLASS.replace("Engine", "Server"))
    found = proposals(package, feature, lock)
    assert str(found["feature.start"].target) == "up.engine:Server.start"


def test_something_unlike_it_is_no_candidate(package: Package, feature: Feature, lock: Lock) -> None:
    package.write("up.main", OTHER)
    assert of_run(package, feature, lock) == ""


def test_what_stood_beside_it_before_is_no_candidate(package: Package, feature: Feature) -> None:
    package.write("up.main", textwrap.dedent(RUN) + textwrap.dedent(RUN.replace("def run(", "def train(")))
    package.write("up.engine", CLASS)
    # `train` is a target too, so the lock knows that it was there already.
    feature.wrap("up.main:train", why="w", how="h", link="none: a test", retired_by=Mentions("up.main:train", "npu"))(
        train
    )
    lock = record_lock(UP, "v1", "v1", package.tree(), list(feature))
    package.write("up.main", RUN.replace("def run(", "def train("))
    assert of_run(package, feature, lock) == ""


def train(original: object, config: object, worker: object = None) -> None: ...


def test_the_entry_of_a_candidate_is_the_record_of_the_new_place(
    package: Package, feature: Feature, lock: Lock
) -> None:
    package.write("up.main", RUN.replace("def run(", "def train("))
    found = proposals(package, feature, lock)["feature.run"]
    assert found.record == Record.of(package.tree().definition(found.target))
    assert found.record.signature == "(config, worker=None)"
    assert found.likeness == 1.0


def test_a_short_target_goes_where_its_module_went(package: Package, feature: Feature, why: dict[str, str]) -> None:
    feature.wrap("up.main:short", retired_by=Mentions("up.main:short", "npu"), **why)(short)
    source = textwrap.dedent(RUN) + "\ndef short():\n    pass\n"
    package.write("up.main", source)
    package.write("up.engine", CLASS)
    lock = record_lock(UP, "v1", "v1", package.tree(), list(feature))
    (package.root / "up/main.py").unlink()
    package.write("up.entry", source)
    assert str(proposals(package, feature, lock)["feature.short"].target) == "up.entry:short"


def short(original: object) -> None: ...


def test_rewritten_code_is_proposed_under_the_same_class_and_name_beside_it(
    package: Package, feature: Feature, lock: Lock
) -> None:
    (package.root / "up/engine.py").unlink()
    package.write("up.implementation", "class Engine:\n    def start(self, port):\n        return open(port)\n")
    found = proposals(package, feature, lock)["feature.start"]
    assert str(found.target) == "up.implementation:Engine.start"
    assert found.why == "a class in a module beside it has that name"


def test_two_of_the_same_class_and_name_are_no_candidates(package: Package, feature: Feature, lock: Lock) -> None:
    (package.root / "up/engine.py").unlink()
    for module in ("up.one", "up.other"):
        package.write(module, "class Engine:\n    def start(self, port):\n        return open(port)\n")
    assert "feature.start" not in proposals(package, feature, lock)


def test_what_a_module_had_that_did_not_change_is_no_candidate(package: Package, feature: Feature) -> None:
    twin = textwrap.dedent(RUN.replace("def run(", "def run_again("))
    package.write("up.main", RUN)
    package.write("up.engine", textwrap.dedent(CLASS) + twin)
    lock = record_lock(UP, "v1", "v1", package.tree(), list(feature))
    package.write("up.main", "")
    assert of_run(package, feature, lock) == ""


def test_an_init_beside_it_is_no_candidate(package: Package, feature: Feature, why: dict[str, str]) -> None:
    feature.wrap("up.engine:Engine.__init__", retired_by=Mentions("up.engine:Engine.__init__", "npu"), **why)(init)
    package.write("up.main", RUN)
    package.write("up.engine", "class Engine:\n    def __init__(self, a):\n        self.a = a\n")
    lock = record_lock(UP, "v1", "v1", package.tree(), list(feature))
    (package.root / "up/engine.py").unlink()
    package.write("up.other", "class Engine:\n    def __init__(self, b):\n        self.b = open(b)\n")
    assert proposals(package, feature, lock) == {}


def init(original: object, self: object, a: object) -> None: ...
