"""An import of verl that is interrupted during verification leaves nothing behind: the next one starts over."""

from __future__ import annotations

import sys

import pytest
from testing.interpreter import SHOW, Interpreter

from verl_npu.damage import is_temporary


@pytest.fixture
def ascend(interpreter: Interpreter) -> Interpreter:
    interpreter.package("torch_npu")
    interpreter.package("verl")
    return interpreter


NO_FILES = """
    import resource
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
"""
FILES = "resource.setrlimit(resource.RLIMIT_NOFILE, limits)"
# Python's enum wraps any error that is raised while it makes a member.
IN_AN_ENUM = """
    import enum
    make = enum._proto_member.__set_name__
    def interrupted(member, of, name):
        enum._proto_member.__set_name__ = make
        raise TypeError("_value_ not set in __new__, unable to create it") from RecursionError()
    enum._proto_member.__set_name__ = interrupted
"""
# At a time when the verdicts are known, and nothing has been applied.
AFTER_THE_VERDICTS = """
    from verl_npu.registry.judge import bundles
    judge = bundles.judge
    def interrupted(*words):
        bundles.judge = judge
        judge(*words)
        raise KeyboardInterrupt
    bundles.judge = interrupted
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (NO_FILES, FILES),
        pytest.param(
            IN_AN_ENUM,
            "",
            marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 makes the members otherwise"),
        ),
        (AFTER_THE_VERDICTS, ""),
    ],
    ids=["no file can be opened", "an enum says it in another error", "ctrl-c"],
)
def test_what_passes_is_no_damage_to_our_files(ascend: Interpreter, before: str, after: str) -> None:
    program = f"""
import textwrap, verl_npu_entry
verl_npu_entry.torch_backends()
exec(textwrap.dedent({before!r}))
try:
    import verl
except (OSError, TypeError, KeyboardInterrupt) as error:
    print(type(error).__name__)
{after}
import verl
{SHOW}
"""
    found = ascend.run(program)
    assert found.out.splitlines()[0] in ("OSError", "TypeError", "KeyboardInterrupt"), found.err
    assert found.status["active"]
    assert "stays off" not in found.err


def test_an_error_that_comes_from_itself_is_asked_once() -> None:
    error = ValueError()
    error.__cause__ = error
    assert not is_temporary(error)
