"""MindSpeed is imported only if all that it imports itself is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_npu.errors import MindSpeedImportError
from verl_npu.features.megatron.overrides import installation
from verl_npu.features.megatron.patches import mindspeed


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The folders of the packages that are installed."""
    folders: dict[str, Path] = {"mindspeed": tmp_path, "megatron": tmp_path}
    monkeypatch.setattr(installation, "package_folder", lambda package, part: folders.get(package))
    return folders


def test_a_missing_megatron_is_an_import_error_that_says_what_to_install(folders: dict[str, Path]) -> None:
    del folders["megatron"]
    with pytest.raises(ImportError) as caught:
        mindspeed.refuse_mindspeed_without_its_dependencies()
    error = caught.value
    assert isinstance(error, MindSpeedImportError)
    assert (error.name, error.subject) == ("megatron.core", "mindspeed.megatron_adaptor")
    assert str(error).startswith("mindspeed.megatron_adaptor: expected megatron.core beside MindSpeed, found none")
    assert "pip install megatron-core" in error.fix
    assert error.override == "VERL_NPU_DISABLE=megatron"


def test_a_package_that_this_revision_imports_is_missed(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folders["mindspeed"] / "megatron_adaptor.py").touch()
    monkeypatch.setattr(mindspeed.importlib.util, "find_spec", lambda name: None)
    assert mindspeed.missing_packages(folders["mindspeed"]) == ["einops"]


def test_nothing_is_refused_if_all_is_there(folders: dict[str, Path]) -> None:
    mindspeed.refuse_mindspeed_without_its_dependencies()
