"""An object that somebody put in place of upstream's is refused, and a module that got past the hooks is named."""

from __future__ import annotations

import functools
import sys
from types import ModuleType

import pytest

from verl_npu.registry.apply.hooks import remove_hook
from verl_npu.registry.source.probe import Never
from verl_npu.registry.state import State


class Callable:
    def __call__(self) -> int:
        return 1


def closure():
    def run():
        return 2

    return run


@pytest.fixture
def patched(package, plugin, why):
    package.write(
        "up.ops", "def run():\n    return 1\ndef outer():\n    def run():\n        return 2\n    return run\n"
    )

    def ours(original):
        return 10 * original()

    plugin.feature("f").wrap("up.ops:run", retired_by=Never("a test"), **why)(ours)
    return plugin


@pytest.mark.parametrize(
    "value",
    [Callable, Callable(), functools.partial(int), len, closure(), 5, staticmethod(closure())],
    # Not repr: processes that share the tests out must find them under the same names.
    ids=["class", "instance", "partial", "builtin", "closure", "number", "staticmethod"],
)
def test_something_else_in_the_place_of_a_function_is_refused(package, patched, value) -> None:
    package.load("up.ops").run = value
    registry = patched.start()
    (verdict,) = registry.status().values()
    assert verdict.state is State.FAILED
    assert "expected the function defined in" in verdict.reason
    assert sys.modules["up.ops"].run is value


def test_a_closure_of_the_same_name_in_the_same_file_is_refused(package, patched) -> None:
    module = package.load("up.ops")
    module.run = module.outer()
    (verdict,) = patched.start().status().values()
    assert verdict.state is State.FAILED


def test_a_module_that_was_loaded_by_hand_is_missed(package, patched) -> None:
    registry = patched.start()
    package.load("up")
    made = ModuleType("up.ops")
    made.__file__ = str(package.root / "up" / "ops.py")
    exec(compile(package.tree().read("up.ops"), made.__file__, "exec"), vars(made))
    sys.modules["up.ops"] = made
    (verdict,) = registry.status().values()
    assert verdict.state is State.MISSED
    assert registry.states() == {"f": State.MISSED}


def test_what_stands_in_a_modules_place_without_a_source_is_left_alone(package, plugin, patched, why) -> None:
    package.write("up.more", "def go():\n    return 1\n")
    plugin.features[0].wrap("up.more:go", retired_by=Never("a test"), **why)(lambda original: 5)
    registry = patched.start()
    package.load("up")
    sys.modules["up.ops"] = ModuleType("up.ops")
    assert package.load("up.more").go() == 5
    assert registry.status()["f.ours"].state is State.PENDING


def test_a_patch_that_its_hook_lost_is_applied_with_the_next_one(package, plugin, patched, why) -> None:
    package.write("up.more", "def go():\n    return 1\n")

    def also(original):
        return 5

    plugin.features[0].wrap("up.more:go", retired_by=Never("a test"), **why)(also)
    registry = patched.start()
    package.load("up")
    remove_hook("up.ops", registry._hooks["up.ops", "after"])
    module = package.load("up.ops")
    assert registry.status()["f.ours"].state is State.MISSED
    package.load("up.more")
    assert registry.status()["f.ours"].state is State.APPLIED
    assert module.run() == 10


def test_a_guard_whose_module_came_first_is_missed(package, plugin, why) -> None:
    package.write("up.ops", "def run():\n    return 1\n")
    package.load("up.ops")
    plugin.feature("f").guard("up.ops:run", retired_by=Never("a test"), **why)(lambda: None)
    (verdict,) = plugin.start().status().values()
    assert verdict.state is State.MISSED


def test_shadowed_is_said_only_as_long_as_it_is_so(package, patched, monkeypatch) -> None:
    registry = patched.start()
    module = package.load("up.ops")
    with monkeypatch.context() as mock:
        mock.setattr(module, "run", len)
        assert registry.states() == {"f": State.SHADOWED}
    assert registry.states() == {"f": State.APPLIED}


HOLDERS = {
    "a dict": ("TABLE = {'run': run}", "up.user.TABLE['run']"),
    "a list": ("TABLE = [run]", "up.user.TABLE[0]"),
    "a class body": ("class K:\n    go = run", "up.user.K.go"),
    "a staticmethod": ("class K:\n    go = staticmethod(run)", "up.user.K.go"),
    "a partial": ("import functools\ngo = functools.partial(run)", "up.user.go (partial)"),
    "a default": ("def go(f=run): ...", "up.user.go (default)"),
    "a closure": (
        "def make(f):\n    def inner(): return f()\n    return inner\ngo = make(run)",
        "up.user.go (closure)",
    ),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_copy_that_cannot_be_rebound_is_named(package, patched, holder: str) -> None:
    source, where = HOLDERS[holder]
    package.write("up.user", f"from up.ops import run\n{source}\n")
    package.load("up.user")
    registry = patched.start()
    (verdict,) = registry.status().values()
    assert verdict.state is State.APPLIED
    assert verdict.reason.endswith(f"copies of it stay upstream's: {where}")
    assert sys.modules["up.user"].run is sys.modules["up.ops"].run


def test_a_value_is_followed_into_the_init_of_a_package(package, plugin, why) -> None:
    package.write("up.part.ops", "import sys\nFAST = bool(sys)\n")
    package.write("up.part.__init__", "from .ops import FAST\n")
    package.load("up.part")
    plugin.feature("f").set("up.part.ops:FAST", retired_by=Never("a test"), **why)(lambda value: "ours")
    plugin.start()
    assert sys.modules["up.part"].FAST == "ours"
