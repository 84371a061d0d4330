"""The source of a pin: a checkout that is there, or one line that says which is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from maintain import sources


def test_a_pin_of_git_is_its_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_NPU_UPSTREAMS", str(tmp_path))
    (tmp_path / "mindspeed-f2b0977e").mkdir()
    assert sources.find("mindspeed", "f2b0977e") == tmp_path / "mindspeed-f2b0977e"


def test_without_a_folder_of_checkouts_the_variable_and_the_checkout_are_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("VERL_NPU_UPSTREAMS", raising=False)
    with pytest.raises(sources.NotHere, match=r"set VERL_NPU_UPSTREAMS to a folder with verl-v0\.6\.1/"):
        sources.find("verl", "v0.6.1")


def test_a_folder_without_the_checkout_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_NPU_UPSTREAMS", str(tmp_path))
    with pytest.raises(sources.NotHere, match=f"VERL_NPU_UPSTREAMS={tmp_path} has no verl-796871d7/"):
        sources.find("verl", "796871d7")


def test_a_release_with_recipes_is_its_checkout_and_its_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_wheel", lambda distribution, version: Path(f"{distribution}-{version}.whl"))
    monkeypatch.setenv("VERL_NPU_UPSTREAMS", str(tmp_path))
    assert sources.all_of("verl", "v0.7.0") == [Path("verl-0.7.0.whl")]
    (tmp_path / "verl-v0.7.0").mkdir()
    assert sources.all_of("verl", "v0.7.0") == [tmp_path / "verl-v0.7.0", Path("verl-0.7.0.whl")]
    assert sources.find("verl", "v0.7.0") == tmp_path / "verl-v0.7.0"


def test_a_release_without_recipes_is_its_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_wheel", lambda distribution, version: Path(f"{distribution}-{version}.whl"))
    monkeypatch.setenv("VERL_NPU_UPSTREAMS", str(tmp_path))
    (tmp_path / "verl-v0.8.0").mkdir()
    assert sources.all_of("verl", "v0.8.0") == [sources.find("verl", "v0.8.0")] == [Path("verl-0.8.0.whl")]
