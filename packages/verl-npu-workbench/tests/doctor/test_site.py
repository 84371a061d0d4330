from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version
from verl_npu_workbench.doctor import site
from verl_npu_workbench.doctor.site import Holder, Npu, ask_npu_smi, installed_packages, parse_npu_smi

from . import smi
from .box import Box


def command(folder: Path, text: str) -> dict[str, str]:
    script = folder / "npu-smi"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    return {"PATH": str(folder)}


def test_each_card_of_an_a2_is_one_npu() -> None:
    answer = parse_npu_smi(smi.a2(2, used=3161, driver="24.1.rc3"))
    assert answer.version == "24.1.rc3"
    assert answer.npus == (Npu(0, "910B2", "OK", 3161, 65536, "a2"), Npu(1, "910B2", "OK", 3161, 65536, "a2"))
    assert answer.holders == ()


def test_each_card_of_an_a3_is_two_npus() -> None:
    npus = parse_npu_smi(smi.a3(8)).npus
    assert [npu.card for npu in npus] == [card for card in range(8) for _ in range(2)]
    assert {npu.kind for npu in npus} == {"a3"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [("910B4-1", "a2"), ("Ascend910B2", "a2"), ("910_9392", "a3"), ("Ascend910", ""), ("310P3", ""), ("910ProB", "")],
)
def test_a_chips_name_tells_its_generation(name: str, kind: str) -> None:
    assert parse_npu_smi(smi.a2(1).replace("910B2", name)).npus[0].kind == kind


def test_processes_are_told_from_npus() -> None:
    answer = parse_npu_smi(smi.held(smi.a2(2), 1, 4711, "python3 -m verl", 54000))
    assert answer.holders == (Holder(1, 0, 4711, "python3 -m verl", 54000),)
    assert len(answer.npus) == 2


def test_the_virtual_ascends_own_answer_is_understood() -> None:
    text = "npu-smi 24.1.0    Version: 24.1.0\n| 0     Ascend910B2   | OK   | 65536 MB |\n"
    answer = parse_npu_smi(text)
    assert (answer.version, [npu.kind for npu in answer.npus]) == ("24.1.0", ["a2"])


def test_a_machine_without_the_command_says_so(tmp_path: Path) -> None:
    answer = ask_npu_smi({"PATH": str(tmp_path)})
    assert not answer.exists
    assert answer.problem == "the command npu-smi is missing"


def test_what_the_command_says_last_is_the_problem(tmp_path: Path) -> None:
    answer = ask_npu_smi(
        command(tmp_path, "echo first; echo 'dcmi module initialize failed. ret is -8005' >&2; exit 7")
    )
    assert answer.exists
    assert answer.problem.endswith("status 7 and says: dcmi module initialize failed. ret is -8005")


def test_a_command_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "SMI_PATIENCE", 0.2)
    assert "has not ended after 0.2 s" in ask_npu_smi(command(tmp_path, "exec /bin/sleep 60")).problem


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
