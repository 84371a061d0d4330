"""Reading the environment; no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from virtual_ascend import configured_npus, requested
from virtual_ascend.errors import SettingError
from virtual_ascend.settings import Settings


@pytest.mark.parametrize("value", ["1", "2", "64", " 8 "])
def test_a_number_asks_for_npus(value: str) -> None:
    assert requested({"VIRTUAL_ASCEND": value})
    assert Settings.read({"VIRTUAL_ASCEND": value}).devices == int(value)


@pytest.mark.parametrize("environ", [{}, {"VIRTUAL_ASCEND": ""}, {"VIRTUAL_ASCEND": "0"}])
def test_unset_empty_and_zero_ask_for_nothing(environ: dict[str, str]) -> None:
    assert not requested(environ)


@pytest.mark.parametrize("value", ["two", "-1", "65", "1.5", "²", "1,2"])
def test_anything_else_is_refused_with_what_was_expected(value: str) -> None:
    with pytest.raises(SettingError) as error:
        Settings.read({"VIRTUAL_ASCEND": value})
    assert str(error.value) == (
        f"VIRTUAL_ASCEND={value!r}: expected a whole number of NPUs from 0 to 64; found {value!r}; "
        "correct the value, or unset the variable"
    )


@pytest.mark.parametrize("environ", [{}, {"VIRTUAL_ASCEND": ""}, {"VIRTUAL_ASCEND": "0"}])
def test_zero_npus_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(SettingError, match="found 0 or no value; set VIRTUAL_ASCEND=2"):
        Settings.read(environ)


def test_the_configured_count_is_none_where_nothing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIRTUAL_ASCEND", raising=False)
    assert configured_npus() == 0


@pytest.mark.parametrize(
    ("environ", "cache"),
    [
        ({"VIRTUAL_ASCEND_CACHE": "/own"}, "/own"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/virtual-ascend"),
        ({"VIRTUAL_ASCEND_CACHE": "/own", "XDG_CACHE_HOME": "/xdg"}, "/own"),
    ],
)
def test_the_cache_follows_the_environment(environ: dict[str, str], cache: str) -> None:
    assert Settings.read({"VIRTUAL_ASCEND": "1", **environ}).cache == Path(cache)


@pytest.mark.parametrize(("value", "memory"), [("", 64), ("0.5", 0.5), (" 32 ", 32)])
def test_the_memory_is_a_number_of_gib(value: str, memory: float) -> None:
    assert Settings.read({"VIRTUAL_ASCEND": "1", "VIRTUAL_ASCEND_MEMORY": value}).memory == memory


@pytest.mark.parametrize("value", ["0", "-1", "much", "inf", "nan", "1GiB"])
def test_another_memory_is_refused_with_what_was_expected(value: str) -> None:
    with pytest.raises(SettingError) as error:
        Settings.read({"VIRTUAL_ASCEND": "1", "VIRTUAL_ASCEND_MEMORY": value})
    assert str(error.value) == (
        f"VIRTUAL_ASCEND_MEMORY={value!r}: expected a number of GiB above 0; found {value!r}; "
        "correct the value, or unset the variable"
    )


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, virtual_ascend; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["VIRTUAL_ASCEND_CANN_VERSION", "VIRTUAL_ASCEND_TORCH_NPU_VERSION"])
def test_a_version_with_other_characters_is_refused(name: str) -> None:
    with pytest.raises(SettingError, match=f"{name}='../8': expected a version; found .*; set {name}=[0-9]"):
        Settings.read({"VIRTUAL_ASCEND": "1", name: "../8"})
