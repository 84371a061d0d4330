from __future__ import annotations

import json
from pathlib import Path

import pytest
from verl_npu_workbench.kernels import judging, launches, toolchain
from verl_npu_workbench.kernels.toolchain import PAIRS, Python, Toolchain
from verl_npu_workbench.kernels.verdict import NOT_SHOWN, Arguments, Kernel, Outcome, Stage, Verdict

from ..kernels.conftest import ADD
from .conftest import Run

_GUESS = Arguments(signature={"x_ptr": "*fp32"}, constants={"BLOCK": 64}, label="BLOCK=64")
_SAID = {
    "good": Outcome(verdict=Verdict.COMPILES),
    "large": Outcome(verdict=Verdict.OVERFLOWS, stage=Stage.COMPILER, buffer="ub", needed=8577280, there=1572864),
    "maybe": Outcome(
        verdict=Verdict.MAY_OVERFLOW, stage=Stage.COMPILER, buffer="ub", needed=2113536, there=1572864, why="WIDTH=128"
    ),
    "wrong": Outcome(verdict=Verdict.REFUSED, stage=Stage.FRONT_END, why="no such thing", line=7),
    "gone": Outcome(verdict=Verdict.CRASHED, stage=Stage.ADAPTER, why="triton-adapter-opt ended by SIGSEGV"),
    "slow": Outcome(verdict=Verdict.NOT_JUDGED, why="the compiler was still running after 120 s"),
}


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Return a file of kernels, with canned answers in place of a compiler."""
    file = tmp_path / "some.py"
    file.write_text(ADD)
    python = Python("python3.11", (3, 11), ())
    monkeypatch.setattr(toolchain, "prepare", lambda *given: Toolchain(tmp_path, PAIRS[0], python))
    kernels = tuple(
        Kernel(name=name, module="some", file=str(file), line=1, cases=(_GUESS,), source=name) for name in _SAID
    )
    monkeypatch.setattr(judging, "read", lambda target, request: judging.Read(kernels, {}))
    monkeypatch.setattr(judging, "outcomes", lambda target, jobs, request: [_SAID[kernel.name] for kernel, _ in jobs])
    return str(file)


def test_each_verdict_is_said_with_what_belongs_to_it(run: Run, judged: str) -> None:
    status, said = run("kernels", judged, columns=200)
    assert status == 1
    assert "ub needs 8577280 bits but has only 1572864 (1047.0 of 192 KiB), with BLOCK=64" in said
    assert "front end: line 7" in said or "line 7: no such thing" in said
    assert "adapter: triton-adapter-opt ended by SIGSEGV" in said
    assert ": 1 compiles, 1 overflows, 1 may overflow, 1 refused, 1 crashed, 1 not judged" in said


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_what_compiling_does_not_show_is_in_every_output(run: Run, judged: str, form: tuple[str, ...]) -> None:
    _, said = run("kernels", judged, *form, columns=1000)
    assert all(each in " ".join(said.split()) for each in NOT_SHOWN)
    assert "SIMULATED" in said or json.loads(said)["simulated"] is True


@pytest.mark.parametrize(
    ("only", "status"), [("good", 0), ("large", 1), ("maybe", 0), ("slow", 2), ("none_of_these", 2), ("some:good", 0)]
)
def test_the_status_tells_whether_a_kernel_fails(run: Run, judged: str, only: str, status: int) -> None:
    assert run("kernels", judged, "--only", only)[0] == status


def test_an_overflow_that_rests_on_a_guess_is_a_warning_that_names_the_guess(run: Run, judged: str) -> None:
    status, said = run("kernels", judged, "--only", "maybe", columns=200)
    assert status == 0
    assert (
        "ub needs 2113536 bits but has only 1572864 (258.0 of 192 KiB); these arguments are guessed: WIDTH=128"
        in " ".join(said.split())
    )
    assert "warning: *May overflow* means that a kernel overflows with guessed arguments" in said


def test_json_has_the_figures_and_the_arguments(run: Run, judged: str) -> None:
    content = json.loads(run("kernels", judged, "--json", "--only", "large")[1])
    (kernel,) = content["kernels"]
    assert (kernel["needed_bits"], kernel["available_bits"]) == (8577280, 1572864)
    assert kernel["tried"][0]["arguments"] == "guessed"
    assert kernel["tried"][0]["signature"] == {"x_ptr": "*fp32"}


def test_a_name_that_is_not_there_is_one_line(run: Run) -> None:
    status, said = run("kernels", "no_such_module")
    assert status == 2
    assert said.startswith("verl-npu: no_such_module: expected")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    "given", [(), ("target", "--launches", __file__), ("target", "--", "python"), ("--launches", __file__, "--", "x")]
)
def test_a_target_launches_or_a_command_is_named_and_only_one_of_them(run: Run, given: tuple[str, ...]) -> None:
    status, said = run("kernels", *given)
    assert status == 2
    assert "give one of TARGET, --launches FILE, and -- COMMAND" in " ".join(said.split())


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, judged: str) -> Path:
    """Return a file with the launches of two kernels, one of which does not fit."""
    file = Path(judged).with_name("launches.jsonl")
    case = {"signature": {"x": "*bf16", "n": "i32"}, "constants": {"BLOCK": 64}, "guessed": False}
    names = ("good", "large")
    lines = [
        {"schema": 1, "kernel": name, "module": "some", "file": judged, "grid": [4, 2], "cases": [case]}
        for name in names
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_launches_are_judged_as_captured_and_what_compiling_does_not_show_is_said(
    run: Run, launched: Path, form: tuple[str, ...]
) -> None:
    status, said = run("kernels", "--launches", str(launched), *form, columns=1000)
    assert status == 1
    assert "captured" in said
    assert "guess" not in said.lower()
    assert "*bf16, grid 4x2" in said or '"*bf16"' in said
    assert all(each in " ".join(said.split()) for each in NOT_SHOWN)


def test_what_a_program_launched_before_it_failed_is_judged(
    run: Run, launched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ran(command: object, chain: object, file: Path) -> int:
        file.write_text(launched.read_text())
        return 3

    monkeypatch.setattr(launches, "run", ran)
    status, said = run("kernels", "--", "python", "train.py", "--steps", "2", columns=200)
    assert status == 1
    assert "the program ended with status 3; its launches before the end are judged" in said
    assert "1 compiles, 1 overflows" in said
