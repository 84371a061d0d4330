"""Each variable is declared once, and a wrong value of it is one clear error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from verl_npu import environment
from verl_npu.errors import SettingError

PROJECT = Path(__file__).resolve().parents[1]
NAME = re.compile(r"\bVERL_NPU(?:_[A-Z]+)*\b")
# Marks that the scripts and tests set for each other, and macros of the C++ sources.
OWN = {"VERL_NPU_HARNESS_INSIDE"}


def mentioned() -> set[str]:
    files = [path for top in ("verl_npu", "scripts") for path in (PROJECT / top).rglob("*.py")]
    return {name for path in files for name in NAME.findall(path.read_text())}


def test_every_variable_that_is_mentioned_is_declared() -> None:
    assert mentioned() - OWN == set(environment.VARIABLES)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        (environment.SWITCH, "yes"),
        (environment.STRICT, "yes"),
        (environment.WEIGHT_SYNC_CHECK, "all"),
        (environment.WEIGHT_SYNC_PORT, "two"),
        (environment.WEIGHT_SYNC_PORT, "1.5"),
        (environment.WEIGHT_SYNC_PORT, "65536"),
        (environment.WEIGHT_SYNC_PORT, "-1"),
        (environment.PLACEMENT_TIMEOUT, "nan"),
        (environment.PLACEMENT_TIMEOUT, "inf"),
        (environment.PLACEMENT_TIMEOUT, "0"),
    ],
)
def test_a_wrong_value_names_the_variable_and_what_it_may_hold(variable, text: str) -> None:
    with pytest.raises(SettingError) as raised:
        variable.read({variable.name: text})
    assert str(raised.value).startswith(f"{variable.name}={text!r}: expected {variable.expected}")


@pytest.mark.parametrize("text", ["", "  "])
def test_a_blank_value_is_none(text: str) -> None:
    assert environment.PLACEMENT_TIMEOUT.read({"VERL_NPU_PLACEMENT_TIMEOUT": text}) == 120.0
    assert not environment.PLACEMENT_TIMEOUT.is_set({"VERL_NPU_PLACEMENT_TIMEOUT": text})


def test_words_are_read_in_any_case_and_names_without_their_blanks() -> None:
    assert environment.SWITCH.read({"VERL_NPU": " OFF "}) == "off"
    assert environment.DISABLE.read({"VERL_NPU_DISABLE": "device , ,attention"}) == {"device", "attention"}


def test_what_the_user_set_is_forwarded_and_nothing_else() -> None:
    given = {"VERL_NPU": "on", "VERL_NPU_STRICT": "1", "VERL_NPU_DRIVER_MANIFEST": "{}", "PATH": "/bin"}
    assert environment.forwarded(given) == {"VERL_NPU": "on", "VERL_NPU_STRICT": "1"}


def test_a_folder_is_forwarded_with_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"VERL_NPU_MANIFEST_DIR": "manifests"}
    assert environment.forwarded(given) == {"VERL_NPU_MANIFEST_DIR": str(tmp_path / "manifests")}
    assert environment.forwarded({"VERL_NPU_MANIFEST_DIR": ""}) == {"VERL_NPU_MANIFEST_DIR": ""}


def test_what_virtual_npus_are_told_is_forwarded() -> None:
    given = {"VIRTUAL_ASCEND": "2", "VIRTUAL_ASCEND_MEMORY": "4"}
    assert environment.forwarded(given) == given
