"""The object that a name is bound to after its module has run: the source is read to its end."""

from __future__ import annotations

import textwrap

import pytest

from verl_npu.registry.source.folder import Folder
from verl_npu.registry.source.reader import ends_of
from verl_npu.registry.source.tree import SourceTree, Target

METHOD = "class K:\n    def run(self): ...\n"
FUNCTION = "def run(): ...\n"


class One(Folder):
    """A package of one file."""

    def __init__(self, source: str) -> None:
        self.source = textwrap.dedent(source).encode()

    def read(self, *parts: str) -> bytes | None:
        return self.source if parts == ("__init__.py",) else None

    def entries(self, *parts: str) -> list[str] | None:
        return None if parts else ["__init__.py"]


def bound(source: str, name: str) -> tuple[str, ...]:
    return ends_of(Target("up", name), SourceTree({"up": One(source)}))


KINDS = {
    "def run(): ...": "function",
    "async def run(): ...": "coroutine function",
    "def run(): yield": "generator function",
    "async def run(): yield": "asynchronous generator function",
    "def run():\n    def inner(): yield": "function",
    "@contextlib.contextmanager\ndef run(): yield": "generator function @contextmanager",
    "@ray.remote(num_cpus=1)\ndef run(): ...": "function @remote(num_cpus=1)",
    "@register(mode=Dispatch.ALL)\ndef run(): ...": "function @register(mode=Dispatch.ALL)",
    "@register(mode=made(mesh='actor'))\ndef run(): ...": "function @register(mode=made())",
    "@log(role='one', logger=logger)\ndef run(): ...": "function @log(logger=logger)",
    "from up.ops import run": "run from up",
    "from .ops import go as run": "go from its own package",
    "import ops as run": "module ops",
}


@pytest.mark.parametrize("source", KINDS)
def test_a_source_binds_its_kind(source: str) -> None:
    assert bound(source, "run") == (KINDS[source],)


def test_two_definitions_that_are_called_alike_are_one() -> None:
    assert bound("if fast:\n    def run(): ...\nelse:\n    def run(): ...\n", "run") == ("function",)


@pytest.mark.parametrize(
    "test", ["TYPE_CHECKING", "typing.TYPE_CHECKING", "False", "not True", '__name__ == "__main__"']
)
def test_what_no_import_executes_binds_nothing(test: str) -> None:
    assert bound(f"if {test}:\n    def run(): ...\n", "run") == ()
    assert bound(f"if {test}:\n    pass\nelse:\n    def run(): ...\n", "run") == ("function",)


BELOW = (
    "run = other",
    "run, x = pair",
    "run += 1",
    "del run",
    "for run in several: ...",
    "with it as run: ...",
    "try: ...\nexcept ValueError as run: ...",
    "if (run := other): ...",
    "match it:\n    case [*run]: ...",
    "from up import run",
    "from up import *",
    "class run: ...",
    'globals()["run"] = other',
    "globals()[name] = other",
    "globals().update(run=other)",
    'globals().pop("run")',
    'vars()["run"] = other',
    'setattr(sys.modules[__name__], "run", other)',
    "sys.modules[__name__].run = other",
    "here = sys.modules[__name__]\nhere.run = other",
    "sys.modules[__name__] = Lazy()",
    "def install():\n    global run\n    run = other\ninstall()",
    'exec("run = other")',
)
BELOW_A_METHOD = (
    "K.run = other",
    "K.run, x = pair",
    "del K.run",
    "for K.run in several: ...",
    'setattr(K, "run", other)',
    "setattr(K, name, other)",
    'type.__setattr__(K, "run", other)',
    'delattr(K, "run")',
    "Other = K\nOther.run = other",
    "def install():\n    K.run = other\ninstall()",
    "K = other",
    "K = wrapped(K)",
    "class K: ...",
    "class K(K): ...",
    "del K",
    "from up import K",
    "from up import *",
    'globals()["K"] = other',
    "sys.modules[__name__] = Lazy()",
)


@pytest.mark.parametrize(
    ("above", "name", "below"),
    [*((FUNCTION, "run", text) for text in BELOW), *((METHOD, "K.run", text) for text in BELOW_A_METHOD)],
)
def test_statements_below_that_change_it_count(above: str, name: str, below: str) -> None:
    assert bound(above, name) == ("function",)
    assert len(bound(f"{above}{below}\n", name)) > 1


NOTHING = (
    "run.note = 1",
    "K.run.note = 1",
    "K.other = 1",
    'globals()["other"] = 1',
    'print(globals().get("run"))',
    "def other():\n    run = 1",
    "def other():\n    global run\n    run = 1",
    "class Other:\n    run = 1",
    "other = lambda: (run := 1)",
    "for other in (1, 2): ...",
    "Other.run = 1",
)


@pytest.mark.parametrize("below", NOTHING)
def test_statements_that_change_something_else_do_not_count(below: str) -> None:
    source = f"{FUNCTION}{METHOD}{below}\n"
    assert (bound(source, "run"), bound(source, "K.run")) == (("function",), ("function",))


def test_an_import_first_and_the_definition_where_it_fails_are_two() -> None:
    source = "try:\n    from up import run\nexcept ImportError:\n    def run(): ...\n"
    assert bound(source, "run") == ("run from up", "function")


def test_what_makes_a_class_another_one_counts_for_its_methods_and_a_registration_does_not() -> None:
    assert bound(f"@Registry.register('x')\n@deprecated('y')\n{METHOD}", "K.run") == ("function",)
    assert bound(f"@ray.remote\n{METHOD}", "K.run") == ("in K: class @remote", "function")
