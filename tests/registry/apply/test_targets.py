"""Targets of every kind: patchable ones are patched, others are refused, and nothing else is touched."""

from __future__ import annotations

import compileall
import sys
from types import ModuleType

import pytest

from verl_npu.registry.source.probe import Never
from verl_npu.registry.state import State

NEVER = Never("a test")


@pytest.fixture
def feature(plugin):
    return plugin.feature("f")


@pytest.fixture
def replace(feature, why):
    """Return a function that replaces a target in `up.ops` by a function that returns a value."""

    def replace(target: str, value: str = "ours") -> None:
        def patched(*args, **kwargs):
            return value

        patched.__name__ = target.replace(".", "_")
        feature.replace(f"up.ops:{target}", retired_by=NEVER, **why)(patched)

    return replace


BASES = """
    class Base:
        def run(self):
            return "base"

    class Sub(Base):
        def run(self):
            return "sub"

    class Plain(Base):
        pass
"""
DECORATED = """
    import functools

    def register(function):
        @functools.wraps(function)
        def inner(*args):
            return ("registered", function(*args))
        inner.magic = {"dispatch": 1}
        return inner

    @register
    def run():
        return 1
"""
DATACLASS = """
    from dataclasses import dataclass

    @dataclass
    class Config:
        size: int = 3

        def area(self):
            return self.size ** 2
"""
# Source, target, the expression that is evaluated, and its value before and after.
REPLACED = {
    "a method of a nested class": (
        "class A:\n    class B:\n        def run(self):\n            return 1\n",
        "A.B.run",
        "A.B().run()",
        (1, "ours"),
    ),
    "a decorated function, under its decoration": (
        DECORATED,
        "run",
        "run(), run.magic",
        ((("registered", 1), {"dispatch": 1}), ("ours", {"dispatch": 1})),
    ),
    "a method of a dataclass, and its fields stay": (
        DATACLASS,
        "Config.area",
        "Config(size=4) == Config(4), Config().area()",
        ((True, 9), (True, "ours")),
    ),
    "a partial": ("import functools\nhalf = functools.partial(pow, exp=0.5)\n", "half", "half(4)", (2.0, "ours")),
    "a C function": ("from math import sqrt\n", "sqrt", "sqrt(4)", (2.0, "ours")),
    "an imported name": ("from up.source import run as start\n", "start", "start()", (1, "ours")),
}


@pytest.mark.parametrize("case", REPLACED)
def test_it_is_replaced_and_put_back(package, plugin, replace, case: str) -> None:
    source, target, expression, (before, after) = REPLACED[case]
    package.write("up.source", "def run():\n    return 1\n")
    package.write("up.ops", source)
    replace(target)
    registry = plugin.start()
    ops = package.load("up.ops")
    assert registry.states() == {"f": State.APPLIED}
    assert eval(expression, vars(ops)) == after
    registry.deactivate()
    assert eval(expression, vars(ops)) == before


@pytest.mark.parametrize("targets", [("Base.run", "Sub.run"), ("Sub.run", "Base.run")], ids=["base", "subclass"])
def test_a_subclass_is_patched_whether_before_or_after_its_base(package, plugin, replace, targets) -> None:
    package.write("up.ops", BASES)
    for target in targets:
        replace(target, target)
    plugin.start()
    ops = package.load("up.ops")
    assert (ops.Base().run(), ops.Sub().run(), ops.Plain().run()) == ("Base.run", "Sub.run", "Base.run")
    assert "run" not in vars(ops.Plain)


def test_an_inherited_method_is_not_declared_where_it_is_inherited(package, plugin, replace) -> None:
    package.write("up.ops", BASES)
    plugin.lock()
    replace("Plain.run")
    registry = plugin.start()
    package.load("up.ops")
    # The lock of this very source has no such target either, so there is nothing to patch.
    assert registry.states() == {"f": State.ABSENT}
    assert "run" not in vars(sys.modules["up.ops"].Plain)


def test_a_whole_class_is_replaced(package, plugin, feature, why) -> None:
    package.write("up.ops", BASES)

    @feature.replace("up.ops:Base", retired_by=NEVER, **why)
    class Other:
        pass

    registry = plugin.start()
    ops = package.load("up.ops")
    assert ops.Base is Other
    registry.deactivate()
    assert ops.Base is not Other


IMPORT = "from up.source import run as start\n"
BRANCHES = (
    "import sys\nif sys.maxsize > 1:\n    def run():\n        return 1\nelse:\n    def run():\n        return 2\n"
)
# The source at the pin, the target, and the source that is found.
CHANGED = {
    "a method that moved into the base": (
        BASES,
        "Sub.run",
        BASES.replace('        def run(self):\n            return "sub"', "        pass"),
    ),
    "an import of another name": (IMPORT, "start", "from up.source import other as start\n"),
    "an import from elsewhere": (IMPORT, "start", "from up.elsewhere import run as start\n"),
    "an import of a module": (IMPORT, "start", "import up.source as start\n"),
    "the other branch of a conditional definition": (BRANCHES, "run", BRANCHES.replace("return 2", "return 3")),
}


@pytest.mark.parametrize("case", CHANGED)
def test_it_is_drift(package, plugin, replace, case: str) -> None:
    source, target, found = CHANGED[case]
    package.write("up.ops", source)
    replace(target)
    assert plugin.start_on("up.ops", found).states() == {"f": State.DRIFTED}


def test_what_else_an_import_line_brings_is_no_drift(package, plugin, replace) -> None:
    package.write("up.ops", IMPORT)
    replace("start")
    registry = plugin.start_on("up.ops", "from up.source import other, run as start\n")
    assert registry.states() == {"f": State.PENDING}


def test_a_reexport_under_another_name_is_rebound(package, plugin, replace) -> None:
    package.write("up.ops", "def run():\n    return 1\n")
    package.write("up.api", "from up.ops import run as go\n")
    api = package.load("up.api")
    replace("run")
    plugin.start()
    assert api.go() == "ours"


class Lazy(ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AssertionError(f"woken by {name}")


class Strange:
    """An entry of sys.modules that is no module and fails on any attribute access."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"asked for {name}")


@pytest.mark.parametrize("make", [lambda: Lazy("user_other"), Strange], ids=["a lazy module", "no module"])
def test_what_must_not_be_asked_in_sys_modules_is_not(package, plugin, replace, monkeypatch, make) -> None:
    monkeypatch.setitem(sys.modules, "user_other", make())
    package.write("up.ops", "def run():\n    return 1\n")
    ops = package.load("up.ops")
    replace("run")
    plugin.start()
    monkeypatch.undo()
    assert ops.run() == "ours"


def test_a_replacement_is_refused_where_only_bytecode_is_there(package, plugin, replace) -> None:
    package.write("up.ops", "def run():\n    return 1\n")
    replace("run")
    plugin.lock()
    path = package.root / "up" / "ops.py"
    assert compileall.compile_file(str(path), quiet=2, legacy=True)
    path.unlink()
    registry = plugin.start(lock=False)
    assert package.load("up.ops").run() == 1
    status = registry.status()["f.run"]
    assert status.state is State.DRIFTED
    assert "source is not available" in status.reason


def test_a_getter_is_replaced_and_the_setter_stays(package, plugin, feature, why) -> None:
    package.write(
        "up.ops",
        """
        class Model:
            @property
            def size(self):
                return self._size

            @size.setter
            def size(self, value):
                self._size = value
        """,
    )

    @feature.wrap("up.ops:Model.size", retired_by=NEVER, **why)
    def size(original, self):
        return ("ours", original(self))

    plugin.start()
    model = package.load("up.ops").Model()
    model.size = 3
    assert model.size == ("ours", 3)


SWITCH = "import os\nhere = bool(os.environ.get('NOT_SET'))\n"


@pytest.fixture
def turned(package, feature, why):
    package.write("up.ops", SWITCH)

    @feature.set("up.ops:here", retired_by=NEVER, **why)
    def turn(value):
        return not value

    return turn


def test_a_value_is_set_before_anybody_copies_it(package, plugin, turned) -> None:
    package.write("up.user", "from up.ops import here\n")
    registry = plugin.start()
    assert (package.load("up.user").here, package.load("up.ops").here) == (True, True)
    assert registry.states() == {"f": State.APPLIED}
    registry.deactivate()
    assert package.load("up.ops").here is False


def test_copies_of_a_value_are_rebound_by_what_the_source_imports(package, plugin, turned) -> None:
    package.write("up.absolute", "from up.ops import here\n")
    package.write("up.relative", "from .ops import here\n")
    package.write("up.another", "here = False\n")
    package.write("up.elsewhere", "from up.another import here\n")
    names = ("absolute", "relative", "another", "elsewhere")
    modules = [package.load(f"up.{name}") for name in names]
    registry = plugin.start()
    # False is everywhere, so only names imported from the target are copies of it.
    assert [module.here for module in modules] == [True, True, False, False]
    registry.deactivate()
    assert [module.here for module in modules] == [False] * 4


def test_a_value_that_is_computed_otherwise_is_drift(plugin, turned) -> None:
    assert plugin.start_on("up.ops", SWITCH.replace("NOT_SET", "SET")).states() == {"f": State.DRIFTED}
