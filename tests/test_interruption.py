"""An import of verl that is interrupted while it is verified leaves nothing behind: the next begins from the start."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .interpreter import Interpreter, python
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
