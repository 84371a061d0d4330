"""A target that is another object while its own lines stay as they are: what sees it, the check or the application.

The check reads source: it sees whatever is written where the target is defined. What a module does to itself when it
is executed is seen when the patch is applied, by the object that is there. What neither sees is in here, too.
"""

from __future__ import annotations

import pytest

from verl_npu.registry.source.probe import Never
from verl_npu.registry.state import State

SOURCE = """
class Base:
    pass

class Model(Base):
    def step(self, batch):
        return batch
"""
DECORATORS = """
import functools

def kept(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)
    return inner

def bare(function):
    def inner(*args):
        return function(*args)
    return inner
"""
CHANGED = {
    "another base class": SOURCE.replace("Model(Base)", "Model(dict)"),
    "a decorator that keeps the name": DECORATORS + SOURCE.replace("    def step", "    @kept\n    def step"),
    "a decorator that does not": DECORATORS + SOURCE.replace("    def step", "    @bare\n    def step"),
    "setattr at the end": SOURCE + "\nsetattr(Model, 'step', lambda self, batch: None)\n",
    "assigned at the end": SOURCE + "\ndef other(self, batch):\n    return None\nModel.step = other\n",
    "defined again under an if": SOURCE + "\n    if True:\n        def step(self, batch):\n            return None\n",
    "other parameters under an if": SOURCE
    + "\n    if True:\n        def step(self, *rows):\n            return None\n",
    "deleted at the end": SOURCE + "\ndel Model.step\n",
}
CHECK, APPLICATION, NEITHER = State.DRIFTED, State.FAILED, State.APPLIED
SEEN = {
    # The method itself is the same, and is called the same way.
    ("another base class", "replace"): NEITHER,
    ("another base class", "wrap"): NEITHER,
    ("a decorator that keeps the name", "replace"): CHECK,
    # The wrapper calls what the decorator made of it.
    ("a decorator that keeps the name", "wrap"): NEITHER,
    ("a decorator that does not", "replace"): CHECK,
    ("a decorator that does not", "wrap"): APPLICATION,
    ("setattr at the end", "replace"): APPLICATION,
    ("setattr at the end", "wrap"): APPLICATION,
    ("assigned at the end", "replace"): APPLICATION,
    ("assigned at the end", "wrap"): APPLICATION,
    ("defined again under an if", "replace"): CHECK,
    # The wrapper calls whichever of the two it finds: they are called the same way.
    ("defined again under an if", "wrap"): NEITHER,
    ("other parameters under an if", "replace"): CHECK,
    ("other parameters under an if", "wrap"): CHECK,
    ("deleted at the end", "replace"): APPLICATION,
    ("deleted at the end", "wrap"): APPLICATION,
}


@pytest.mark.parametrize(("change", "action"), SEEN, ids=[" - ".join(case) for case in SEEN])
def test_a_disguise_is_seen_where_it_is_said_to_be(change: str, action: str, package, plugin, why) -> None:
    package.write("up.ops", SOURCE)

    def step(*args: object) -> str:
        return "ours"

    getattr(plugin.feature("f"), action)("up.ops:Model.step", retired_by=Never("a test"), **why)(step)
    plugin.lock()
    package.write("up.ops", CHANGED[change])
    registry = plugin.start(lock=False)
    package.load("up")
    before = registry.status()["f.step"].state
    package.load("up.ops")
    after = registry.status()["f.step"].state
    seen = SEEN[change, action]
    assert (before is State.DRIFTED) is (seen is CHECK)
    assert after is seen
