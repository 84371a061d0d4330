"""What the interpreter knows of upstream's objects, sections and registries, and what it gives up."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from verl_npu_workbench.jobs.asserted import WORLD, made, refused
from verl_npu_workbench.jobs.settings import Settings
from verl_npu_workbench.jobs.values import instance, section

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
    said: list[str] = []
    made(settings, "one", tree, said)
    assert said == ["only one"]


def test_a_section_is_made_wherever_it_is(tree: SourceTree) -> None:
    settings = Settings({"one._target_": "verl.worker.Config", "one.part.inner._target_": "verl.worker.Config"})
    said: list[str] = []
    made(settings.changed({"one.part.inner.size": 2}), "one", tree, said)
    assert said == ["only one"]


SICE = ["unexpected keyword argument 'sice'"]


@pytest.mark.parametrize(
    ("kind", "said"), [("Config", SICE), ("Grown", SICE), ("Extended", []), ("Mixed", []), ("MixedByName", [])]
)
def test_a_field_is_unknown_if_all_of_a_class_is_known(kind: str, said: list[str], tree: SourceTree) -> None:
    settings = Settings(
        {"one._target_": f"verl.worker.{kind}", "one.sice": 1, "one.zise": 1, "one._convert_": "all", "other": 1}
    )
    found: list[str] = []
    made(settings, "one", tree, found)
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
    "by a keyword with another name": ('@Sub.register(name="newer")', ["no new in ['newer', 'one', 'other']"]),
    "by something": ('@elsewhere().register("new")', []),
    "elsewhere": ('@elsewhere.Registry2.register("new")', ["no new in ['one', 'other']"]),
    "in a function": ("def f():\n    from elsewhere import E\n    E.register('new')", ["no new in ['one', 'other']"]),
    "in an object": ("made = elsewhere.make()\nmade.register('new')", ["no new in ['one', 'other']"]),
    "in an object of it": ('made = verl.parts.Registry()\n@made.register("new")', []),
    "in what a function returns": ("from .made import own\nmade = own()\nmade.register('new')(1)", []),
    "in what a function gets elsewhere": (
        "from .made import foreign\nmade = foreign()\nmade.register('new')(1)",
        ["no new in ['one', 'other']"],
    ),
    "without a call": ("@verl.parts.Registry.register", []),
    "in another registry": ('@Dispatch.register("new")', ["no new in ['one', 'other']"]),
}


@pytest.mark.parametrize(("by", "said"), REGISTERED.values(), ids=REGISTERED.keys())
def test_a_name_may_be_registered_in_several_ways(by: str, said: list[str], tree: SourceTree, tmp_path: Path) -> None:
    (tmp_path / "verl" / "sub.py").write_text("from verl.parts import Registry as Base\nclass Sub(Base): ...")
    made = "from .parts import Registry\n\ndef own():\n    return Registry\n\ndef foreign():\n"
    (tmp_path / "verl" / "made.py").write_text(f"{made}    from transformers import Foreign\n    return Foreign")
    text = f"import elsewhere\nimport verl.parts\nfrom .sub import Sub\n\nclass Dispatch: ...\n\n{by}\nclass New: ..."
    (tmp_path / "verl" / "new.py").write_text(text)
    # The source of transformers is there, but it is not read.
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").write_text("")
    tree = SourceTree.at(tmp_path, ("verl", "transformers"))
    assert list(refused(Target("verl.parts", "Registry.new"), ["new"], tree)) == said


def test_a_registry_is_read_apart_from_the_function_that_asks(tree: SourceTree, tmp_path: Path) -> None:
    asks = "from .parts import Registry\n\ndef ask(name):\n    assert name in Registry._parts, name\n    Registry2 = 1"
    (tmp_path / "verl" / "asks.py").write_text(asks)
    more = "from .parts import Registry as Registry2\n\n@Registry2.register('two')\nclass Two: ..."
    (tmp_path / "verl" / "more.py").write_text(more)
    said = list(refused(Target("verl.asks", "ask"), ["another"], tree))
    assert said == ["another"]


def test_a_registry_that_a_condition_may_read_is_not_changed(tree: SourceTree, tmp_path: Path) -> None:
    reads = "    if elsewhere.known():\n        print(Registry._parts.items())"
    asks = (
        f"import elsewhere\nfrom .parts import Registry\n\ndef ask(name):\n{reads}\n    assert name in Registry._parts"
    )
    (tmp_path / "verl" / "asks.py").write_text(asks)
    assert list(refused(Target("verl.asks", "ask"), ["another"], tree)) == ["name in Registry._parts"]


ENGINES = """
class Engines:
    _engines = {}

    @classmethod
    def register(cls, kind, backend, device="npu"):
        def add(engine):
            if kind not in cls._engines:
                cls._engines[kind] = {}
            for each in backend if isinstance(backend, list) else [backend]:
                cls._engines[kind][each] = engine
            return engine
        return add

    @classmethod
    def get(cls, kind, backend):
        assert kind in cls._engines, f"no {kind}"
        assert backend in cls._engines[kind], f"no {backend} in {sorted(cls._engines[kind])}"

@Engines.register(kind="actor", backend=["one", "two"])
class Engine: ...
"""


@pytest.mark.parametrize(
    ("kind", "backend", "said"),
    [
        ("actor", "two", []),
        ("actor", "three", []),
        ("critic", "three", []),
        ("critic", "one", ["no one in ['three']"]),
        ("actor", "four", ["no four in ['one', 'three', 'two']"]),
        ("reward", "one", ["no reward"]),
    ],
)
def test_a_registry_of_registries_has_the_names_of_all_modules(
    kind: str, backend: str, said: list[str], tree: SourceTree, tmp_path: Path
) -> None:
    (tmp_path / "verl" / "engines.py").write_text(ENGINES)
    more = "from .engines import Engines\n\n@Engines.register(backend='three', kind='{}')\nclass More: ..."
    for each in ("actor", "critic"):
        (tmp_path / "verl" / f"more_of_{each}.py").write_text(more.format(each))
    assert list(refused(Target("verl.engines", "Engines.get"), [kind, backend], tree))[:1] == said


FOLLOWED: Mapping[str, tuple[str, str]] = {
    "a text beside a number": ("if config.text > 0: pass", "TypeError: '>' not supported between instances of"),
    "a text beside an unknown number": (
        "assert elsewhere.steps() >= config.text",
        "TypeError: upstream needs a number, not the string 'ten'",
    ),
    "a text as a number": ("int(config.text)", "ValueError: invalid literal for int() with base 10: 'ten'"),
    "a list that is too short": ("int(config.one[1])", "IndexError: list index out of range: config.one[1]"),
    "too few values": ("first, second = config.one", "ValueError: expected 2 values, got 1: (first, second)"),
    "a part of nothing": ("config.nothing.lower()", "AttributeError: 'NoneType' object has no attribute 'lower'"),
    "a division by nothing": ("int(len(elsewhere.rows()) // config.zero)", "ZeroDivisionError: division by zero"),
    "a name without a value": (
        "if config.zero: folder = 1\n    int(folder)",
        "UnboundLocalError: cannot access local variable 'folder' where it is not associated with a value: folder",
    ),
    "a member of an enumeration": (
        "assert changing.Mode.TEN == config.text, 'a member is no text'",
        "a member is no text",
    ),
    "the value of a member": ("assert changing.Mode.TEN.value == config.text\n    assert config.zero", "config.zero"),
    "a member that is a text": ("assert changing.Text.TEN == config.text\n    assert config.zero", "config.zero"),
    "a list of upstream's": ("assert isinstance([config.ten], list)\n    assert config.zero", "config.zero"),
    "a context": ("with elsewhere.timer() as timer: assert config.zero", "config.zero"),
    "a loop over batches": ("for batch in elsewhere.batches():\n        assert config.zero", "config.zero"),
    "a loop over many": ("for epoch in range(1000):\n        assert config.zero", "config.zero"),
    "a loop as long as": ("while config.one:\n        assert config.zero", "config.zero"),
    "a loop that goes on": (
        "for each in (1, 2):\n        if each == 1: continue\n        assert config.zero, f'at {each}'",
        "at 2",
    ),
    "an attempt whose errors are errors": (
        "try: int(config.text)\n    except ValueError as error: raise TypeError from error",
        "ValueError: invalid literal for int() with base 10: 'ten'",
    ),
    "what follows from an error": ("assert config.zero, 'zero'\n    int(1 / config.zero)", "zero"),
    "an attempt with an end": ("try: assert config.zero\n    finally: elsewhere.end()", "config.zero"),
    "a mesh": ("elsewhere.init_device_mesh('npu', mesh_shape=(2, 3))", ""),
    "another mesh": (
        "init_device_mesh('npu', mesh_shape=(2, 3))",
        "RuntimeError: the device mesh (2, 3) does not match the 8 ranks",
    ),
    "a module that is not there": (
        "importlib.import_module('json.no_such_module')",
        "ModuleNotFoundError: no module named json.no_such_module in this environment: ",
    ),
    "a name that a module does not have": (
        "getattr(importlib.import_module('json.decoder'), 'JSONDecodr')",
        "AttributeError: module json.decoder has no attribute JSONDecodr, but JSONDecoder: ",
    ),
    "a class of a module": (
        "check = getattr(importlib.import_module('own_checks'), 'Check')\n    check(config.zero)",
        "zero",
    ),
    "an attribute that no class has": (
        "int(changing.Sizes().mass)",
        "AttributeError: 'Sizes' object has no attribute 'mass': changing.Sizes().mass",
    ),
    "a key of a section": ("for key in config.keys():\n        assert key != 'zero', key", "zero"),
    "all values of a section": ("assert all(each != 'ten' for each in config.values()), 'ten'", "ten"),
    "an entry that another replaces": ("config['ten'] = config.zero\n    assert config.ten", "config.ten"),
    "a section that another replaces": (
        "config.moved = config.part\n    assert config.moved.size",
        "config.moved.size",
    ),
    "a function from all of a module": ("from verl.stars import check\n    check(config.zero)", "no zero"),
    "what a method did whose result nobody knows": (
        "counted = changing.Counted(); rows = counted.grow(); assert counted.count == 0, 'grown'",
        "grown",
    ),
    "an object whose attribute is asked for": (
        "counted = changing.Counted(); elsewhere.know(getattr(counted, 'count')); assert counted.count, 'none'",
        "none",
    ),
    "an object of which another method changes an attribute": (
        "counted = changing.Counted()\n    if elsewhere.known(): counted.show()\n    assert counted.count, 'none'",
        "none",
    ),
    "modules that import everything from each other": (
        "from verl.stars import missing\n    checks.check(config.zero)",
        "no zero",
    ),
    "any value": ("assert any(each == 'two' for each in ['ten', 'one']), 'no two'", "no two"),
    "a function of another module": ("checks.check(config.zero)", "no zero"),
    "a registered function": (
        "assert 'one' in checks.CHECKS\n    check = checks.CHECKS['one']\n    check(config.zero)",
        "not one",
    ),
    "a method that gives up": ("int(checks.Check.get(config, 'zero') or config.text)", "ValueError"),
    "a file of the user's": (
        "spec = importlib.util.spec_from_file_location('mine', config.file)\n"
        "    assert hasattr(importlib.util.module_from_spec(spec), 'other')",
        "hasattr(importlib.util.module_from_spec(spec), 'other')",
    ),
}
UNFOLLOWED_ERRORS = {
    "an attempt": "try: int(config.text)\n    except ValueError: pass",
    "errors that are suppressed": "with contextlib.suppress(ValueError): int(config.text)",
    "a loop that may end": "for each in (1, 2):\n        if elsewhere.ends(): break\n        assert config.zero",
    "a condition that nobody knows": "if elsewhere.condition(): int(config.text)",
    "a text beside an unknown text": "assert elsewhere.version() >= '0.9'",
    "a name that an expression gives": "if (folder := elsewhere.folder()) and int(folder): pass",
    "a list that others fill": "rows = []\n    elsewhere.fill(rows)\n    rows[0]",
    "arguments that nobody knows": "checks.check(*elsewhere.values())",
    "a default that nobody chose": "assert default == 1",
    "a class that others make": "checks.Wrapped()",
    "a module with names that nobody knows": "getattr(importlib.import_module('own_checks'), 'Other')",
    "a configuration's list": "assert not isinstance(config.one, list)",
    "a list in a configuration's list": "assert not isinstance(config.many[0], list)",
    "a part of a configuration's list": "assert not isinstance(config.one[:], list)",
    "what may have come before": "state = None\n    if elsewhere.known(): return\n    state.lower()",
    "a package that is not here": "importlib.import_module('no_such_package.optim')",
    "a generator": "list(changing.rows())",
    "arguments by place": "assert changing.Sizes(config.ten).size == 1",
    "a member of an enumeration": "assert changing.Mode(config.text) == changing.Mode.TEN",
    "a list by another name": "rows = []; same = rows; same.append(1); assert rows",
    "a list that a function fills": "rows = []; changing.fill(rows); assert rows",
    "a list that a loop fills": "rows = []\n    for each in [rows]: each.append(1)\n    assert rows",
    "a part of a pair": "rows = []; both = (rows, 1); both[0].append(1); assert rows",
    "a list that grows": "rows = []; same = rows; same += [1]; assert rows",
    "a key that goes": "rows = {'a': 1}; same = rows; del same['a']; assert 'a' not in rows",
    "a key that may come": "a = {}; b = a\n    if elsewhere.known(): b['a'] = 1\n    assert 'a' not in a",
    "a place in a list": "rows = [1]; same = rows; same[0] = 2; assert rows[0] == 2",
    "a global that a function sets": "changing.init(); assert changing.get()",
    "a table that the module fills": "assert 'ten' in changing.TABLE",
    "an attribute that a class sets": "changing.Group.init(); assert changing.Group.size",
    "a name of the function around": "one = 1\n    def f():\n        nonlocal one; one = 2\n    f(); assert one == 2",
    "more values than names": "changing.check(1, 2, 3)",
    "a default of a missing name": "getattr(importlib.import_module('json'), 'no_such_name', None)",
    "a default of an attribute that no class has": "getattr(changing.Sizes(), 'mass', 1).lower()",
    "an attribute that other code sets": "int(changing.Sizes().weight)",
    "a part that may change": (
        "one = changing.Pair()\n    if elsewhere.known(): one.part.reset()\n    assert one.part.count"
    ),
    "a method that a method calls": (
        "one = changing.Counted()\n    if elsewhere.known(): one.again()\n    assert one.count"
    ),
    "a call in an argument": "one = changing.Counted(); changing.given(elsewhere.change(one)); assert one.count",
    "an entry of a section that is no longer there": (
        "part = config.part; config.part = elsewhere.part(); assert not part.get('size', 1)"
    ),
    "a value of a loop that nobody knows": "assert not any(each == elsewhere.one() for each in [1])",
    "a long loop of values": "assert not any(each == 1 for each in range(100))",
    "what the result of a method changed": "one = changing.Counted(); one.handed(); assert one.count",
    "a method that passes its object on": "one = changing.Counted(); one.visit(); assert one.count",
    "a method that is assigned": "one = changing.Counted(); one.shared(); assert one.count",
    "a method by its name": "one = changing.Counted(); getattr(one, config.text)(); assert one.count",
    "a method that others call": "one = changing.Counted(); elsewhere.run(one.again); assert one.count",
    "a property that changes its object": "one = changing.Counted(); elsewhere.show(one.rate); assert one.count",
    "a change in an argument of a known call": (
        "one = changing.Counted(); changing.check(elsewhere.change(one) or 1); assert one.count"
    ),
    "an object in an argument that nobody knows": (
        "one = changing.Counted(); changing.grow([one, elsewhere.two]); assert one.count"
    ),
    "an object in an entry that nobody knows": (
        "one = changing.Counted(); changing.grow({0: (one, elsewhere.two)}[0]); assert one.count"
    ),
    "an object in a named argument that nobody knows": (
        "one = changing.Counted(); changing.grow(pair=[one, elsewhere.two]); assert one.count"
    ),
    "a method of a base class that nobody knows": "one = changing.Fitted(); one.fit(); assert one.count",
    "an attribute that is asked for only if it is there": (
        "one = changing.Sizes(); elsewhere.show(one.mass.sum() if hasattr(one, 'mass') else 0)"
    ),
    "an attribute of a function that nobody calls": "one = changing.Sizes(); show = lambda: one.mass.sum()",
    "an attribute that others set in an object": "one = changing.Sizes(); elsewhere.fill(one); int(one.mass)",
    "an attribute of all attributes": "one = changing.Sizes(); one.__dict__['mass'] = 1; int(one.mass)",
    "an attribute that a loop sets": "int(changing.Sizes().width)",
    "a value after the first that is true": "assert any(int(each) for each in ['1', 'a'])",
    "a value after the first that is false": "assert not all(int(each) for each in ['0', 'a'])",
    "a value that nobody asks for": "unused = (int(each) for each in ['a'])",
    "an entry of a section that another value replaces": (
        "part = config.part; config.part = None; assert not part.get('size', 1)"
    ),
    "a new entry of a section that others change": (
        "part = config.part; config.part.update(new=1); assert 'new' in part.keys()"
    ),
    "an entry of a configuration that others change": "whole = config; config.update(zero=1); assert whole.zero",
    "an entry that is deleted": "del config.zero; assert 'zero' not in config",
    "a default of a missing key": "assert OmegaConf.select(config, 'missing', default=True)",
    "a handler that may return": (
        "try: int(config.text)\n    except ValueError:\n        if config.one: return\n        raise"
    ),
    "errors that are ignored": "with elsewhere.ignoring(ValueError): int(config.text)",
    "a setter": "held = changing.Held(); held.size = 2; assert held._size == 2",
    "all attributes at once": "sizes = changing.Sizes(); sizes.__dict__.update(size=2); assert sizes.size == 2",
    "a number's format": "assert f'{config.zero:02d}' == '00'",
    "a type by another name": "assert torch.half == torch.float16",
    "a part that nobody knows": "assert {'a': elsewhere.one()} == {'a': 1}",
    "a loop in a function": "changing.loop(config)",
    "a member of an enumeration by identity": "assert changing.Mode.TEN is changing.Mode.TEN",
    "a text of a member": "assert f'{changing.Mode.TEN}' == 'Mode.TEN'",
    "a data type by identity": "assert torch.float16 is torch.float16",
    "no value among types": "assert isinstance(config.nothing, str | None)",
    "a rest": "first, *rest = [1, 2]\n    assert rest == [2]",
    "a rest in a loop": "for one, *rest in [[1, 2]]: assert rest == [2]",
    "a set": "assert len({config.ten, 1}) == 1 and {1, 2} == {2, 1}",
    "a difference of sets": "assert not {config.text} - {'ten'}",
    "a list that a condition fills": "rows = []\n    assert elsewhere.fill(rows)\n    assert rows",
    "a list that a sum fills": "rows = []; one = 1\n    one += elsewhere.fill(rows)\n    assert rows",
    "a list that a method of others fills": "rows = []\n    elsewhere.each(rows.append)\n    assert rows",
    "a list in a pair that others fill": "rows = []\n    elsewhere.fill((rows, 1))\n    assert rows",
}
UNBOUND = {
    "a file that is no Python": (
        "spec = importlib.util.spec_from_file_location('bad', config.bad)\n"
        "    hasattr(importlib.util.module_from_spec(spec), 'one')"
    ),
    "constants in a circle": "int(changing.ONE)",
    "a class of itself": "changing.Circle()",
    "a huge loop": "for each in range(100_000_000_000_000_000_000): int(each)",
    "a long path": f"os.path.exists('/{'a' * 300}.py')",
    "deep loops": "changing.deep()",
    "a huge list": "list(range(100_000_000))",
    "a huge text": "assert not 'a' * 10_000_000_000",
    "a text that doubles": "text = 'a'\n    for each in range(64): text = text + text\n    assert not text",
    "a number that squares": "number = 10\n    for each in range(64): number = number * number\n    assert not number",
}
CHANGED = """
import elsewhere
from dataclasses import dataclass
from enum import Enum

ONE = TWO
TWO = ONE
_STATE = None
TABLE = {}
for each in ("ten", "two"):
    TABLE[each] = 2

def init():
    global _STATE
    _STATE = 1

def get():
    return _STATE

def rows():
    yield 1

def fill(rows):
    rows.append(1)

def check(one, *rest, strict=False):
    assert not strict

def loop(config):
    for each in elsewhere.rows():
        assert config.zero

def deep():
    for one in range(64):
        for two in range(64):
            for three in range(64):
                for four in range(64):
                    pass

class Circle(Circle): ...

@dataclass
class Sizes:
    size: int = 0

def weigh(sizes):
    sizes.weight = 1

for each in ("height", "width"):
    setattr(Sizes, each, 1)

def given(rows):
    return elsewhere.rows()

def grow(pair):
    pair[0].count = 1

class Counted:
    def __init__(self):
        self.count = 0
        self.rows = elsewhere.rows()

    def grow(self):
        self.count = 1
        return elsewhere.rows()

    @elsewhere.wraps
    def reset(self):
        self.count = 1

    def again(self):
        self.reset()

    def show(self):
        elsewhere.show(self.count)

    def handed(self):
        return elsewhere.visit(self)

    @elsewhere.wraps
    def visit(self):
        elsewhere.visit(self)

    shared = elsewhere.shared

    @property
    def rate(self):
        self.count = 1

class Fitted(elsewhere.Base):
    def __init__(self):
        self.count = 0

    def step(self):
        self.count = 1

class Pair:
    def __init__(self):
        self.part = Counted()

class Mode(Enum):
    TEN = "ten"

class Text(str, Enum):
    TEN = "ten"

class Group:
    size = None

    @classmethod
    def init(cls):
        cls.size = 1

class Held:
    def __init__(self):
        self._size = 1

    @property
    def size(self):
        return self._size

    @size.setter
    def size(self, value):
        self._size = value
"""
CHECKS = """
import elsewhere
from elsewhere import *

CHECKS = {}

def register(name):
    def add(function):
        CHECKS[name] = function
        return function
    return add

@register("one")
def one(value):
    assert value, "not one"

def check(value=None):
    assert value, "no zero"

class Check:
    def __init__(self, value):
        assert value, "zero"

    @staticmethod
    def get(of, name):
        try:
            return of.get(name)
        except AttributeError:
            return None

@elsewhere.wraps
class Wrapped:
    def __init__(self):
        assert False
"""


def said_of(body: str, tree: SourceTree, tmp_path: Path) -> list[str]:
    (tmp_path / "mine.py").write_text("def compute_score(): ...")
    (tmp_path / "own_checks").mkdir()
    (tmp_path / "verl" / "changing.py").write_text(CHANGED)
    (tmp_path / "verl" / "stars.py").write_text("from .checks import *\nfrom .stars import *")
    (tmp_path / "bad.py").write_text("def compute_score(a b): ...")
    for name in ("own_checks/__init__.py", "verl/checks.py"):
        (tmp_path / name).write_text(CHECKS)
    (tmp_path / "verl" / "job.py").write_text(
        f"import elsewhere\nimport importlib\nfrom verl import changing, checks\n\n"
        f"def start(config, default=2):\n    {body}\n"
    )
    settings = {
        "text": "ten",
        "zero": 0,
        "ten": 1,
        "one": [0.9],
        "many": [[1]],
        "nothing": None,
        "part.size": 0,
        "file": str(tmp_path / "mine.py"),
        "bad": str(tmp_path / "bad.py"),
    }
    return list(refused(Target("verl.job", "start"), [section(Settings(settings))], tree, {WORLD: 8}))


@pytest.mark.parametrize(("body", "said"), FOLLOWED.values(), ids=FOLLOWED.keys())
def test_an_error_of_python_is_upstreams_if_its_values_are_known(
    body: str, said: str, tree: SourceTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    found = said_of(body, tree, tmp_path)
    assert [each[: len(said)] for each in found] == ([said] if said else [])


@pytest.mark.parametrize("body", UNFOLLOWED_ERRORS.values(), ids=UNFOLLOWED_ERRORS.keys())
def test_an_error_that_is_not_certain_is_none(
    body: str, tree: SourceTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    assert said_of(body, tree, tmp_path) == []


@pytest.mark.parametrize("body", UNBOUND.values(), ids=UNBOUND.keys())
def test_what_has_no_end_or_no_meaning_is_unknown(body: str, tree: SourceTree, tmp_path: Path) -> None:
    start = time.process_time()
    assert said_of(body, tree, tmp_path) == []
    assert time.process_time() - start < 5


def test_an_import_that_fails_is_an_error_and_ends_nothing(tree: SourceTree, tmp_path: Path) -> None:
    body = "from torch.no_such_module import Part"
    assert [each.partition(" in this")[0] for each in said_of(body, tree, tmp_path)] == [
        "ModuleNotFoundError: no module named torch.no_such_module"
    ]
