from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from verl_npu.registry.source.definition import fingerprint, signature
from verl_npu.registry.source.tree import Memory

FUNCTION = "def f(a, b=1):\n    return a + b\n"


def of(source: str) -> str:
    return fingerprint(ast.parse(source).body)


@pytest.mark.parametrize(
    "same",
    [
        "def f(a,b = 1) :\n        return (a+b)\n",
        "# a comment\ndef f(a, b=1):\n    # another\n    return a + b\n",
        'def f(a, b=1):\n    """A docstring."""\n    return a + b\n',
        "def f(\n    a,\n    b=1,\n):\n    return a + b  # why\n",
    ],
    ids=["formatting", "comments", "docstring", "line breaks"],
)
def test_comments_docstrings_and_formatting_change_nothing(same: str) -> None:
    assert of(same) == of(FUNCTION)


@pytest.mark.parametrize(
    ("module", "same"), [("typing", True), ("typing_extensions", True), ("somewhere", False)], ids=str
)
def test_what_is_for_type_checkers_alone_is_not_read(module: str, same: bool) -> None:
    decorated = f"from {module} import override\n@override\n{FUNCTION}"
    (_, function) = Memory().parse(decorated.encode()).body
    assert (fingerprint([function]) == of(FUNCTION)) is same


@pytest.mark.parametrize(
    "mutant",
    [
        "def f(a, b=1):\n    return a - b\n",
        "def f(a, b=2):\n    return a + b\n",
        "def f(a, b=True):\n    return a + b\n",
        "def f(a, b=1.0):\n    return a + b\n",
        "def f(a, b='1'):\n    return a + b\n",
        "def f(a, b=b'1'):\n    return a + b\n",
        "def f(a, c=1):\n    return a + c\n",
        "def f(b, a=1):\n    return a + b\n",
        "def f(a, *, b=1):\n    return a + b\n",
        "def f(a, /, b=1):\n    return a + b\n",
        "def g(a, b=1):\n    return a + b\n",
        "async def f(a, b=1):\n    return a + b\n",
        "@wraps\ndef f(a, b=1):\n    return a + b\n",
        "def f(a: int, b=1):\n    return a + b\n",
        "def f(a, b=1):\n    return a\n",
        "def f(a, b=1):\n    return (a, b)\n",
        "def f(a, b=1):\n    return a + b\n    return None\n",
        "def f(a, b=1):\n    'doc'\n    'text that is run'\n    return a + b\n",
    ],
)
def test_every_change_of_meaning_changes_it(mutant: str) -> None:
    assert of(mutant) != of(FUNCTION)


def test_nesting_is_not_flattened() -> None:
    assert of("if a:\n    b()\n    c()\n") != of("if a:\n    b()\nc()\n")


def test_none_is_not_the_same_as_nothing() -> None:
    assert of("def f():\n    return None\n") != of("def f():\n    return\n")


def test_a_string_made_of_other_tokens_does_not_collide() -> None:
    assert of("x = 'a', 'b'\n") != of("x = \"a', 'b\",\n")


# Everything that CPython changed in its trees from 3.10 to 3.13: f-strings, type parameters, empty fields, constants.
TREACHEROUS = r'''
def f(a, *b, c: int = 1, **d) -> "str":
    """doc"""
    x = f"{a!r:>{c}}" f"" "lit" f"{a}{{}}tail" + u"u" + r"\d" + f"{a:%Y-%m}"
    y = f"""{a
        }
    text"""
    match a:
        case {"k": [1, *_], **rest} if rest:
            return lambda: (yield)
        case C(x=1) | None:
            pass
    return {**d, "e": [*b]}, ..., 1j, 1e400, -0.0, b"\x00", "\ud800"

class C(Base, metaclass=M):
    a: int
    async def m(self, /): return [i async for i in self if await i]
'''


def test_it_is_the_same_on_every_python_version(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    module = Path(fingerprint.__code__.co_filename)
    program.write_text(
        "import importlib.util, ast, sys\n"
        f"s = importlib.util.spec_from_file_location('fingerprint', {str(module)!r})\n"
        "m = sys.modules['fingerprint'] = importlib.util.module_from_spec(s); s.loader.exec_module(m)\n"
        f"print(m.fingerprint(ast.parse({TREACHEROUS!r}).body))\n"
    )
    others = [p for v in ("3.10", "3.11", "3.12", "3.13") if (p := shutil.which(f"python{v}")) is not None]
    interpreters = dict.fromkeys([sys.executable, *others])
    printed = {}
    for interpreter in interpreters:
        result = subprocess.run([interpreter, program], capture_output=True, text=True, check=False)
        # A pyenv shim exists for versions that are not switched on.
        if result.returncode == 0 or interpreter == sys.executable:
            printed[interpreter] = result.stdout.strip() or result.stderr
    assert set(printed.values()) == {"2b1168f86e32b66a6270ee08c8594fb0"}, printed


def mutants(source: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield the tree with one name or constant changed, or with one part left out, for each that it has."""
    count = len(list(ast.walk(ast.parse(source))))
    for number in range(count):
        for name in list(ast.walk(ast.parse(source)))[number]._fields:
            tree = ast.parse(source)
            node = list(ast.walk(tree))[number]
            value = getattr(node, name, None)
            if name in ("kind", "ctx") or value in (None, []) or isinstance(value, ast.AST) or value == "doc":
                continue
            if isinstance(value, list):
                # Python 3.12 keeps the empty text at the end of an f-string, which means nothing.
                is_empty = isinstance(value[-1], ast.Constant) and value[-1].value == ""
                if (len(value) == 1 and name == "body") or (name == "values" and is_empty):
                    continue
                setattr(node, name, value[:-1])
            else:
                setattr(node, name, value + 1 if isinstance(value, int) else "another")
            yield f"{type(node).__name__}.{name} = {value!r}", tree


def test_every_name_constant_and_part_of_a_tree_is_in_it() -> None:
    changed = {what: fingerprint(tree.body) for what, tree in mutants(TREACHEROUS)}
    assert len(changed) > 60
    assert [what for what, found in changed.items() if found == of(TREACHEROUS)] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(): ...", "()"),
        ("def f(a, b=1): ...", "(a, b=1)"),
        ("def f(a, /, b, *, c, d=None): ...", "(a, /, b, *, c, d=None)"),
        ("def f(*args, key=g(), **kwargs): ...", "(*args, key=..., **kwargs)"),
        ("def f(a: int = 2) -> str: ...", "(a=2)"),
    ],
)
def test_a_signature_shows_names_kinds_and_defaults(source: str, expected: str) -> None:
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    assert signature(function) == expected
