"""An import of verl that is interrupted while it is verified leaves nothing behind: the next begins from the start."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from testing.interpreter import SHOW, Interpreter, python

from verl_npu.damage import is_passing

from .test_ways_in import TORCH_NPU

PROJECT = Path(__file__).resolve().parents[1]
# What Python's own modules keep of an import that was interrupted is not ours to mend.
IMPORTED = ("re", "ast", "dataclasses", "enum", "json", "pathlib", "inspect", "zipfile", "asyncio")
SECONDS = 7200
HEAVY = ("torch", "tensordict", "ray", "transformers", "numpy")
NIGHTLY = pytest.mark.nightly(
    "verl_npu/activation.py", "verl_npu/session.py", "verl_npu/registry", "verl_npu/features"
)


def interrupted(site: Path, places: str, *modules: str, **variables: str) -> dict:
    words = ("-m", "tests.interrupting", places, *IMPORTED, *modules)
    # Thousands of processes: ten minutes are too few for them beside other work, and no try hangs for long.
    clean = ("VERL_", "ASCEND_")
    done = python(*words, paths=[site], clean=clean, cwd=PROJECT, seconds=SECONDS, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def ascend(interpreter: Interpreter) -> Interpreter:
    interpreter.package("torch_npu")
    interpreter.package("verl")
    return interpreter


@pytest.mark.parametrize(
    ("places", "strict"),
    [
        ("8", ""),
        pytest.param("8", "1", marks=NIGHTLY),
        pytest.param("2000", "", marks=NIGHTLY),
        pytest.param("2000", "1", marks=NIGHTLY),
        pytest.param("every", "", marks=NIGHTLY),
        pytest.param("every", "1", marks=NIGHTLY),
    ],
)
def test_whatever_line_is_interrupted_the_next_import_is_verified(ascend, places: str, strict: str) -> None:
    found = interrupted(ascend.site, places, VERL_NPU_STRICT=strict)
    assert found["bad"] == []
    assert found["expected"].startswith("DriftError" if strict else "")
    assert found["tries"] >= int(places if places.isdecimal() else 1000)


NO_FILES = """
    import resource
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
"""
FILES = "resource.setrlimit(resource.RLIMIT_NOFILE, limits)"
# What Python's enum makes of whatever is raised while it makes a member.
IN_AN_ENUM = """
    import enum
    make = enum._proto_member.__set_name__
    def interrupted(member, of, name):
        enum._proto_member.__set_name__ = make
        raise TypeError("_value_ not set in __new__, unable to create it") from RecursionError()
    enum._proto_member.__set_name__ = interrupted
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
    ],
    ids=["no file can be opened", "an enum says it in another error"],
)
def test_what_passes_is_no_damage_to_our_files(ascend: Interpreter, before: str, after: str) -> None:
    program = f"""
import textwrap, verl_npu_entry
verl_npu_entry.activate()
exec(textwrap.dedent({before!r}))
try:
    import verl
except (OSError, TypeError) as error:
    print(type(error).__name__)
{after}
import verl
{SHOW}
"""
    found = ascend.run(program)
    assert found.out.splitlines()[0] in ("OSError", "TypeError"), found.err
    assert found.status["active"]
    assert "stays off" not in found.err


def test_an_error_that_comes_from_itself_is_asked_once() -> None:
    error = ValueError()
    error.__cause__ = error
    assert not is_passing(error)


@NIGHTLY
@pytest.mark.upstream
@pytest.mark.parametrize("places", ["2000", "every"])
def test_real_verl_is_never_imported_unpatched(
    interpreter: Interpreter, importable: Callable[[str], Path], places: str
) -> None:
    interpreter.package("torch_npu", TORCH_NPU)
    (interpreter.site / "verl").symlink_to(importable("v0.6.1") / "verl")
    found = interrupted(interpreter.site, places, *HEAVY, VERL_NPU_STRICT="1")
    assert (found["expected"], found["bad"]) == ("", [])
