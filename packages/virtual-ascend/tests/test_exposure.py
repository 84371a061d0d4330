"""`torch_npu` and `acl` become importable; a real torch_npu is not touched."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from virtual_ascend.errors import RealAscendError
from virtual_ascend.exposure import CANN_SITE, SITE, expose


@pytest.fixture(autouse=True)
def unexposed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if Path(entry) not in (SITE, CANN_SITE)])
    for name in [name for name in sys.modules if name.split(".")[0] in ("torch_npu", "acl")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(("name", "folder"), [("torch_npu", SITE), ("acl", CANN_SITE)])
def test_the_package_has_a_real_spec(name: str, folder: Path) -> None:
    expose()
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert Path(str(spec.origin)).is_relative_to(folder)


def test_exposing_twice_adds_one_entry() -> None:
    expose()
    expose()
    assert sys.path.count(str(SITE)) == 1


def test_an_installed_torch_npu_is_refused_by_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch_npu").mkdir()
    (tmp_path / "torch_npu" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RealAscendError, match=f"found a real torch_npu in {tmp_path}.*; unset VIRTUAL_ASCEND"):
        expose()
    assert str(SITE) not in sys.path
