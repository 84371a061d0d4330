"""Targets of every make: what can be patched is, what cannot is refused, and nothing else is touched."""

from __future__ import annotations

import compileall
import functools
import sys
from types import ModuleType

import pytest

from verl_npu.registry.source.probe import Never
from verl_npu.registry.state import State

NEVER = Never("a test")


@pytest.fixture
def feature(plugin):
    return plugin.feature("f")


def replace(feature, why, target: str, value: str = "ours"):
    def patched(*args, **kwargs):
        return value

    patched.__name__ = target.replace(".", "_").replace(":", "_")
    feature.replace(target, retired_by=NEVER, **why)(patched)


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


@pytest.mark.parametrize("targets", [("Base.run", "Sub.run"), ("Sub.run", "Base.run")], ids=["base", "subclass"])
def test_a_subclass_is_patched_whether_before_or_after_its_base(package, plugin, feature, why, targets) -> None:
    package.write("up.ops", BASES)
    for target in targets:
        replace(feature, why, f"up.ops:{target}", target)
    plugin.start()
    ops = package.load("up.ops")
    assert (ops.Base().run(), ops.Sub().run(), ops.Plain().run()) == ("Base.run", "Sub.run", "Base.run")
    assert "run" not in vars(ops.Plain)


def test_an_inherited_method_is_not_declared_where_it_is_inherited(package, plugin, feature, why) -> None:
    package.write("up.ops", BASES)
    plugin.lock()
    replace(feature, why, "up.ops:Plain.run")
    registry = plugin.start()
    package.load("up.ops")
    # The lock of this very source has no such target either: there is nothing to patch.
    assert registry.states() == {"f": State.ABSENT}
    assert "run" not in vars(sys.modules["up.ops"].Plain)


def test_a_method_that_moved_into_the_base_is_drift(package, plugin, feature, why) -> None:
    package.write("up.ops", BASES)
    replace(feature, why, "up.ops:Sub.run")
    plugin.lock()
    package.write("up.ops", BASES.replace('        def run(self):\n            return "sub"', "        pass"))
    registry = plugin.start(lock=False)
    package.load("up.ops")
    assert registry.status()["f.up_ops_Sub_run"].state is State.DRIFTED


def test_a_nested_class_is_reached(package, plugin, feature, why) -> None:
    package.write("up.ops", "class A:\n    class B:\n        def run(self):\n            return 1\n")
    replace(feature, why, "up.ops:A.B.run")
    plugin.start()
    assert package.load("up.ops").A.B().run() == "ours"


def test_a_decorated_function_is_replaced_under_its_decoration(package, plugin, feature, why) -> None:
    package.write(
        "up.ops",
        """
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
        """,
    )
    replace(feature, why, "up.ops:run")
    plugin.start()
    ops = package.load("up.ops")
    assert ops.run() == "ours"
    assert ops.run.magic == {"dispatch": 1}


def test_a_dataclass_method_is_patched_and_its_fields_stay(package, plugin, feature, why) -> None:
    package.write(
        "up.ops",
        """
        from dataclasses import dataclass

        @dataclass
        class Config:
            size: int = 3

            def area(self):
                return self.size ** 2
        """,
    )
    replace(feature, why, "up.ops:Config.area")
    plugin.start()
    ops = package.load("up.ops")
    assert ops.Config(size=4) == ops.Config(4)
    assert ops.Config().area() == "ours"


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


def test_a_partial_and_a_c_function_are_replaced_by_what_assigns_them(package, plugin, feature, why) -> None:
    package.write("up.ops", "import functools\nfrom math import sqrt\nhalf = functools.partial(pow, exp=0.5)\n")
    replace(feature, why, "up.ops:half")
    replace(feature, why, "up.ops:sqrt")
    registry = plugin.start()
    ops = package.load("up.ops")
    assert (ops.half(4), ops.sqrt(4)) == ("ours", "ours")
    registry.deactivate()
    assert isinstance(ops.half, functools.partial)
    assert ops.sqrt(4) == 2.0


def test_an_imported_name_is_patched_for_its_importer_alone(package, plugin, feature, why) -> None:
    package.write("up.source", "def run():\n    return 1\n")
    package.write("up.ops", "from up.source import run as start\n")
    replace(feature, why, "up.ops:start")
    registry = plugin.start()
    assert package.load("up.ops").start() == "ours"
    assert registry.status()["f.up_ops_start"].state is State.APPLIED


@pytest.mark.parametrize(
    "change",
    [
        "from up.source import other as start\n",
        "from up.elsewhere import run as start\n",
        "import up.source as start\n",
    ],
)
def test_an_import_of_something_else_is_drift(package, plugin, feature, why, change: str) -> None:
    package.write("up.ops", "from up.source import run as start\n")
    replace(feature, why, "up.ops:start")
    plugin.lock()
    package.write("up.ops", change)
    registry = plugin.start(lock=False)
    package.load("up")
    assert registry.states() == {"f": State.DRIFTED}


def test_what_else_an_import_line_brings_is_no_drift(package, plugin, feature, why) -> None:
    package.write("up.ops", "from up.source import run as start\n")
    replace(feature, why, "up.ops:start")
    plugin.lock()
    package.write("up.ops", "from up.source import other, run as start\n")
    registry = plugin.start(lock=False)
    package.load("up")
    assert registry.states() == {"f": State.PENDING}


def test_a_reexport_under_another_name_is_rebound(package, plugin, feature, why) -> None:
    package.write("up.ops", "def run():\n    return 1\n")
    package.write("up.api", "from up.ops import run as go\n")
    api = package.load("up.api")
    replace(feature, why, "up.ops:run")
    plugin.start()
    assert api.go() == "ours"


def test_both_branches_of_a_conditional_definition_count(package, plugin, feature, why) -> None:
    source = (
        "import sys\nif sys.maxsize > 1:\n    def run():\n        return 1\nelse:\n    def run():\n        return 2\n"
    )
    package.write("up.ops", source)
    replace(feature, why, "up.ops:run")
    plugin.lock()
    package.write("up.ops", source.replace("return 2", "return 3"))
    registry = plugin.start(lock=False)
    package.load("up")
    assert registry.states() == {"f": State.DRIFTED}


def test_a_lazy_module_is_not_woken(package, plugin, feature, why, monkeypatch) -> None:
    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> object:
            if name.startswith("__"):
                raise AttributeError(name)
            raise AssertionError(f"woken by {name}")

    monkeypatch.setitem(sys.modules, "user_lazy", Lazy("user_lazy"))
    package.write("up.ops", "def run():\n    return 1\n")
    ops = package.load("up.ops")
    replace(feature, why, "up.ops:run")
    plugin.start()
    assert ops.run() == "ours"


def test_something_in_sys_modules_that_is_no_module_is_passed_over(package, plugin, feature, why, monkeypatch) -> None:
    class Strange:
        def __getattribute__(self, name: str) -> object:
            raise AssertionError(f"asked for {name}")

    monkeypatch.setitem(sys.modules, "user_strange", Strange())
    package.write("up.ops", "def run():\n    return 1\n")
    ops = package.load("up.ops")
    replace(feature, why, "up.ops:run")
    plugin.start()
    monkeypatch.undo()
    assert ops.run() == "ours"


def test_a_replacement_is_refused_where_only_bytecode_is_there(package, plugin, feature, why) -> None:
    package.write("up.ops", "def run():\n    return 1\n")
    replace(feature, why, "up.ops:run")
    plugin.lock()
    path = package.root / "up" / "ops.py"
    assert compileall.compile_file(str(path), quiet=2, legacy=True)
    path.unlink()
    registry = plugin.start(lock=False)
    assert package.load("up.ops").run() == 1
    status = registry.status()["f.up_ops_run"]
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
def turned(feature, why):
    @feature.set("up.ops:here", retired_by=NEVER, **why)
    def turn(value):
        return not value

    return turn


def test_a_value_is_set_before_anybody_copies_it(package, plugin, turned) -> None:
    package.write("up.ops", SWITCH)
    package.write("up.user", "from up.ops import here\n")
    registry = plugin.start()
    assert (package.load("up.user").here, package.load("up.ops").here) == (True, True)
    assert registry.states() == {"f": State.APPLIED}
    registry.deactivate()
    assert package.load("up.ops").here is False


def test_copies_of_a_value_are_rebound_by_what_the_source_imports(package, plugin, turned) -> None:
    package.write("up.ops", SWITCH)
    package.write("up.absolute", "from up.ops import here\n")
    package.write("up.relative", "from .ops import here\n")
    package.write("up.another", "here = False\n")
    package.write("up.elsewhere", "from up.another import here\n")
    names = ("absolute", "relative", "another", "elsewhere")
    modules = [package.load(f"up.{name}") for name in names]
    registry = plugin.start()
    # False is everywhere: only what was imported from the target is a copy of it.
    assert [module.here for module in modules] == [True, True, False, False]
    registry.deactivate()
    assert [module.here for module in modules] == [False] * 4


def test_a_value_that_is_computed_otherwise_is_drift(package, plugin, turned) -> None:
    package.write("up.ops", SWITCH)
    plugin.lock()
    package.write("up.ops", SWITCH.replace("NOT_SET", "SET"))
    registry = plugin.start(lock=False)
    package.load("up")
    assert registry.states() == {"f": State.DRIFTED}


@pytest.mark.upstream
def test_the_lazy_modules_of_transformers_are_not_woken(package, plugin, feature, why) -> None:
    transformers = pytest.importorskip("transformers")
    package.write("up.ops", "def run():\n    return 1\n")
    ops = package.load("up.ops")
    replace(feature, why, "up.ops:run")
    before = {name: set(vars(module)) for name, module in sys.modules.items() if isinstance(module, ModuleType)}
    assert type(transformers).__name__ == "_LazyModule"
    plugin.start()
    assert ops.run() == "ours"
    assert vars(transformers).keys() == before["transformers"]
    assert {name for name in sys.modules if name.startswith("transformers")} <= before.keys()
