"""Upstream functions with one import or constant replaced."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

from verl_npu.errors import ApplyError
from verl_npu.features.attention.rewriting import import_module, with_constant, with_import


def uses_missing(x: float, *, factor: float = 2.0) -> float:
    from no_such_package.parts import sqrt  # type: ignore[import-not-found]

    def inner() -> float:
        from no_such_package.parts import floor

        return floor(x)

    return factor * sqrt(x) + inner()


def test_an_import_is_answered_by_another_module_nested_functions_included() -> None:
    made = with_import(uses_missing, "no_such_package.parts", "math")
    assert made(6.25, factor=3.0) == 3 * 2.5 + 6
    assert (made.__name__, made.__kwdefaults__) == ("uses_missing", {"factor": 2.0})
    assert "no_such_package" not in sys.modules


def test_the_original_is_left_alone() -> None:
    with_import(uses_missing, "no_such_package.parts", "math")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        uses_missing(4.0)


def test_an_import_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ApplyError, match="no longer imports 'flash_attn'"):
        with_import(uses_missing, "flash_attn", "math")


def test_a_function_that_somebody_wrapped_is_an_error() -> None:
    @functools.wraps(uses_missing)
    def wrapped(*args: float) -> float:
        return uses_missing(*args)

    with pytest.raises(ApplyError, match="because another package has wrapped it"):
        with_import(wrapped, "no_such_package.parts", "math")


def test_a_constant_is_exchanged() -> None:
    def build(name: str) -> dict[str, str]:
        return {"name": name, "attn_implementation": "flash_attention_2"}

    made = with_constant(build, "flash_attention_2", "sdpa")
    assert made("x") == {"name": "x", "attn_implementation": "sdpa"}
    assert build("x")["attn_implementation"] == "flash_attention_2"


def test_a_constant_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ApplyError, match="no longer contains the constant 'eager'"):
        with_constant(uses_missing, "eager", "sdpa")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "exchanged_package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "exchanged_package"]:
        del sys.modules[name]


def test_a_module_is_imported_with_its_import_answered(package: Path) -> None:
    (package / "user.py").write_text("from no_such_package.parts import sqrt\nfound = sqrt(9)\n")
    module = import_module("exchanged_package.user", "no_such_package.parts", "math")
    assert module.found == 3
    import exchanged_package.user  # type: ignore[import-not-found]

    assert exchanged_package.user is module
    assert import_module("exchanged_package.user", "no_such_package.parts", "math") is module


def test_a_module_that_fails_leaves_nothing_behind(package: Path) -> None:
    (package / "broken.py").write_text("from no_such_package.parts import sqrt\nraise ValueError('broken')\n")
    with pytest.raises(ValueError, match="broken"):
        import_module("exchanged_package.broken", "no_such_package.parts", "math")
    assert "exchanged_package.broken" not in sys.modules


def test_a_module_that_is_not_there_is_an_import_error(package: Path) -> None:
    with pytest.raises(ImportError, match="absent"):
        import_module("exchanged_package.absent", "no_such_package.parts", "math")
