"""The answers of `npu-smi info`."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_npu.doctor import npu_smi
from verl_npu.doctor.npu_smi import Holder, Npu, ask, parse

from . import smi


def command(folder: Path, text: str) -> dict[str, str]:
    script = folder / "npu-smi"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    return {"PATH": str(folder)}


def test_each_card_of_an_a2_is_one_npu() -> None:
    answer = parse(smi.a2(2, used=3161, driver="24.1.rc3"))
    assert answer.version == "24.1.rc3"
    assert answer.npus == (Npu(0, "910B2", "OK", 3161, 65536, "a2"), Npu(1, "910B2", "OK", 3161, 65536, "a2"))
    assert answer.holders == ()


def test_each_card_of_an_a3_is_two_npus() -> None:
    npus = parse(smi.a3(8)).npus
    assert [npu.card for npu in npus] == [card for card in range(8) for _ in range(2)]
    assert {npu.kind for npu in npus} == {"a3"}


@pytest.mark.parametrize(
    ("name", "kind"), [("910B4-1", "a2"), ("Ascend910B2", "a2"), ("910_9392", "a3"), ("310P3", ""), ("910ProB", "")]
)
def test_a_name_tells_the_kind(name: str, kind: str) -> None:
    assert parse(smi.a2(1).replace("910B2", name)).npus[0].kind == kind


def test_an_ascend910_of_the_first_generation_is_no_a3() -> None:
    assert parse(smi.a2(1).replace("910B2", "Ascend910")).npus[0].kind == ""


def test_processes_are_told_from_npus() -> None:
    answer = parse(smi.held(smi.a2(2), 1, 4711, "python3 -m verl", 54000))
    assert answer.holders == (Holder(1, 0, 4711, "python3 -m verl", 54000),)
    assert len(answer.npus) == 2


def test_the_virtual_ascends_own_answer_is_understood() -> None:
    text = "npu-smi 24.1.0    Version: 24.1.0\n| 0     Ascend910B2   | OK   | 65536 MB |\n"
    answer = parse(text)
    assert (answer.version, [npu.kind for npu in answer.npus]) == ("24.1.0", ["a2"])


def test_a_machine_without_the_command_says_so(tmp_path: Path) -> None:
    answer = ask({"PATH": str(tmp_path)})
    assert not answer.exists
    assert answer.problem == "there is no command npu-smi"


def test_what_the_command_says_last_is_the_problem(tmp_path: Path) -> None:
    answer = ask(command(tmp_path, "echo first; echo 'dcmi module initialize failed. ret is -8005' >&2; exit 7"))
    assert answer.exists
    assert answer.problem.endswith("status 7 and says: dcmi module initialize failed. ret is -8005")


def test_a_command_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npu_smi, "PATIENCE", 0.2)
    assert "has not ended after 0.2 s" in ask(command(tmp_path, "exec /bin/sleep 60")).problem
