"""`check` names everything that the installed vLLM and vllm-ascend lack."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Run

pytestmark = pytest.mark.upstream


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a vllm-ascend 0.23.0 whose communicator takes other arguments than the real one, and an allocator."""
    site = tmp_path / "site"
    communicators = site / "vllm_ascend" / "distributed" / "device_communicators"
    communicators.mkdir(parents=True)
    (site / "vllm_ascend" / "__init__.py").write_text("raise ImportError('it is not to be imported')\n")
    (communicators / "pyhccl.py").write_text(
        "class PyHcclCommunicator:\n"
        "    def __init__(self):\n"
        "        self.disabled = self.device = None\n"
        "    def all_reduce(self, tensor, out): ...\n"
    )
    allocator = site / "vllm_ascend" / "device_allocator"
    allocator.mkdir()
    (allocator / "camem.py").write_text(
        "class CaMemAllocator:\n"
        "    def sleep(self, offload_tags=None):\n"
        "        return self.pointer_to_data\n"
        "    def wake_up(self, tags=None):\n"
        "        return self.pointer_to_data\n"
    )
    information = site / "vllm_ascend-0.23.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-ascend\nVersion: 0.23.0\n")
    monkeypatch.syspath_prepend(str(site))
    return information


def test_what_is_missing_or_takes_other_arguments_is_said(run: Run, tree: Path, installed: Path) -> None:
    status, output = run("check", "--source", str(tree))
    words = " ".join(output.split())
    assert status == 0
    assert "The installed vllm-ascend 0.23.0 lacks" in words
    assert "PyHcclCommunicator.all_reduce Found" in words
    assert "all_reduce(self, tensor, out), which verl-npu calls with 1 argument." in words
    assert "AscendMLAImpl.W_UV Found no vllm_ascend.attention.mla_v1:AscendMLAImpl.W_UV." in words
    assert "generates with stale weights." in words
    assert "PyHcclCommunicator.disabled" not in words


def test_it_is_in_the_json(run: Run, tree: Path, installed: Path) -> None:
    _, output = run("check", "--source", str(tree), "--json")
    (lack,) = [lack for lack in json.loads(output)["engine_names"] if lack["name"] == "VLLM_ASCEND_ENABLE_NZ"]
    assert (lack["package"], lack["release"]) == ("vllm_ascend", "0.23.0")
    assert lack["found"] == "no vllm_ascend.envs:VLLM_ASCEND_ENABLE_NZ"


@pytest.mark.parametrize("version", ["0.7.3", "dev"])
def test_a_release_that_never_had_a_name_does_not_lack_it(version: str, run: Run, tree: Path, installed: Path) -> None:
    metadata = installed / "METADATA"
    metadata.write_text(metadata.read_text().replace("0.23.0", version))
    _, output = run("check", "--source", str(tree), "--json")
    titles = {lack["name"] for lack in json.loads(output)["engine_names"]}
    assert "VLLM_ASCEND_ENABLE_NZ" not in titles
    assert bool(titles) is (version == "0.7.3")
