"""A target that is gone gets a candidate if something in the tree is like it, and none if nothing is."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping

import pytest

from verl_npu.registry.judge.drift import Proposal, propose
from verl_npu.registry.judge.lock import Record, record_lock
from verl_npu.registry.patch import Feature, Upstream
from verl_npu.registry.source.probe import Mentions

from ..conftest import Package

UP = Upstream("up", ("up",))
RUN = textwrap.dedent("""
    def run(config, worker=None):
        prepare(config)
        made = worker or build(config)
        for step in range(config.steps):
            made.step(step)
        return made
""")
TRAIN = RUN.replace("def run(", "def train(")
OTHER = "def other(config, worker=None):\n    load(config)\n    raise ValueError(worker)\n"
ENGINE = textwrap.dedent("""
    class Engine:
        def start(self, port):
            self.port = port
            self.socket = bind(port)
            self.socket.listen()
            return self.socket
""")
REWRITTEN = "class Engine:\n    def start(self, port):\n        return open(port)\n"
INIT = "class Engine:\n    def __init__(self, a):\n        self.a = a\n"
SHORT = "\ndef short():\n    pass\n"

Sources = Mapping[str, str | None]
Propose = Callable[[Sources, Sources, str], dict[str, Proposal]]


@pytest.fixture
def proposals(package: Package, why: dict[str, str]) -> Propose:
    def proposals(before: Sources, after: Sources, also: str = "") -> dict[str, Proposal]:
        """What is proposed for `run`, `start` and another target, by name; no source stands for a module that went."""
        feature = Feature("f", "a feature")
        for target in filter(None, ("up.main:run", "up.engine:Engine.start", also)):

            def ours(original: object) -> None: ...

            ours.__name__ = target.rpartition(":")[2].rpartition(".")[2]
            feature.wrap(target, retired_by=Mentions(target, "npu"), **why)(ours)
        for module, source in {"up.main": RUN, "up.engine": ENGINE, **before}.items():
            package.write(module, source or "")
        lock = record_lock(UP, "v1", "v1", package.tree(), list(feature))
        for module, source in after.items():
            if source is None:
                package.root.joinpath(*module.split(".")).with_suffix(".py").unlink()
            else:
                package.write(module, source)
        found = propose(list(feature), UP, package.tree(), [lock])
        return {patch_id.partition(".")[2]: proposal for patch_id, proposal in found.items()}

    return proposals


# What is there at the pin beside the two targets, another target, what is there later, and what is proposed.
CASES: dict[str, tuple[Sources, str, Sources, dict[str, str]]] = {
    "it is there": ({}, "", {}, {}),
    "it was renamed in its module": ({}, "", {"up.main": TRAIN}, {"run": "up.main:train"}),
    "it was moved and changed a little": (
        {},
        "",
        {"up.main": "", "up.entry": RUN.replace("prepare(config)", "prepare(config, now=True)")},
        {"run": "up.entry:run"},
    ),
    "its class was renamed": (
        {},
        "",
        {"up.engine": ENGINE.replace("Engine", "Server")},
        {"start": "up.engine:Server.start"},
    ),
    "something unlike it came": ({}, "", {"up.main": OTHER}, {}),
    # `train` is a target too, so the lock knows that it was there already.
    "what is like it stood beside it before": ({"up.main": RUN + TRAIN}, "up.main:train", {"up.main": TRAIN}, {}),
    "what is like it is in a module that did not change": (
        {"up.engine": ENGINE + RUN.replace("def run(", "def run_again(")},
        "",
        {"up.main": ""},
        {},
    ),
    "a short one goes where its module went": (
        {"up.main": RUN + SHORT},
        "up.main:short",
        {"up.main": None, "up.entry": RUN + SHORT},
        {"run": "up.entry:run", "short": "up.entry:short"},
    ),
    "it was rewritten under its class and name beside it": (
        {},
        "",
        {"up.engine": None, "up.implementation": REWRITTEN},
        {"start": "up.implementation:Engine.start"},
    ),
    "there are two of its class and name": ({}, "", {"up.engine": None, "up.one": REWRITTEN, "up.two": REWRITTEN}, {}),
    "an __init__ beside it says nothing": (
        {"up.engine": INIT},
        "up.engine:Engine.__init__",
        {"up.engine": None, "up.other": "class Engine:\n    def __init__(self, b):\n        self.b = open(b)\n"},
        {},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_proposed(proposals: Propose, case: str) -> None:
    before, also, after, expected = CASES[case]
    assert {name: str(one.target) for name, one in proposals(before, after, also).items()} == expected


def test_the_entry_of_a_candidate_is_the_record_of_the_new_place(proposals: Propose, package: Package) -> None:
    found = proposals({}, {"up.main": TRAIN}, "")["run"]
    assert found.record == Record.of(package.tree().definition(found.target))
    assert (found.record.signature, found.likeness) == ("(config, worker=None)", 1.0)


def test_a_candidate_by_its_name_alone_says_so(proposals: Propose) -> None:
    found = proposals({}, {"up.engine": None, "up.implementation": REWRITTEN}, "")["start"]
    assert found.why == "a class in a module beside it has that name"
