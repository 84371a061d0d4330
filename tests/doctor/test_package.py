"""Packages, from their metadata."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from verl_npu.doctor.package import installed_packages

from .box import Box

COMMIT = "f2b0977ec85f0ce3906e34df1e1aafed7b22cafd"


@pytest.fixture
def box(tmp_path: Path, libraries: Path) -> Box:
    return Box(tmp_path, libraries, pin=None)


def packages(box: Box) -> dict:
    return installed_packages([str(box.path("site"))])


def test_a_package_from_git_has_its_commit(box: Box) -> None:
    box.install("mbridge", "0.15.1", url="https://example.org/m.git", vcs_info={"vcs": "git", "commit_id": COMMIT})
    assert str(packages(box)["mbridge"]) == "0.15.1 at f2b0977e"


@pytest.mark.parametrize("detached", [True, False])
def test_a_checkout_that_is_installed_has_the_commit_of_its_head(box: Box, detached: bool) -> None:
    box.write("MindSpeed/.git/HEAD", f"{COMMIT}\n" if detached else "ref: refs/heads/core_r0.16.0\n")
    box.write("MindSpeed/.git/refs/heads/core_r0.16.0", f"{COMMIT}\n")
    box.install("mindspeed", "0.16.0", url=f"file://{box.path('MindSpeed')}", dir_info={"editable": True})
    found = packages(box)["mindspeed"]
    assert found.commit == COMMIT
    assert found.branch == ("" if detached else "core_r0.16.0")


def test_a_megatron_on_pythonpath_is_found_without_metadata(box: Box) -> None:
    box.write("site/megatron/core/package_info.py", "MAJOR = 0\nMINOR = 12\nPATCH = 1\nPRE_RELEASE = ''\n")
    assert packages(box)["megatron-core"].parsed == Version("0.12.1")


def test_the_version_of_a_shallow_clone_says_nothing(box: Box) -> None:
    box.install("vllm-ascend", "0.1.dev1+g1de16ead8")
    assert packages(box)["vllm-ascend"].parsed is None


def test_metadata_that_cannot_be_read_is_passed_over(box: Box) -> None:
    box.install("mbridge", "0.15.1")
    box.write("site/mbridge-0.15.1.dist-info/direct_url.json", "{")
    box.write("site/broken-1.dist-info/METADATA", "")
    assert set(packages(box)) == {"mbridge"}
