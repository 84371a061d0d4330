"""Blocks that fit: halved nearest first, and each compiled."""

from __future__ import annotations

from pathlib import Path

import pytest
from verl_npu_workbench.kernels import fitting, judging, toolchain
from verl_npu_workbench.kernels.judging import Request
from verl_npu_workbench.kernels.targets import Target
from verl_npu_workbench.kernels.toolchain import PAIRS, Soc, Toolchain
from verl_npu_workbench.kernels.verdict import Arguments, Judged, Kernel, Outcome, Verdict

from .conftest import ADD, Judge

THERE = 1 << 20
ARGUMENTS = Arguments(
    signature={"x": "*bf16", "BLOCK_N_TOTAL": "i32"},
    constants={"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 16, "HEAD": 256, "BLOCK_N_TOTAL": 128, "USE_BLOCK": True},
    label="BLOCK_M=128, BLOCK_N=64",
)


def overflow(needed: int) -> Outcome:
    return Outcome(verdict=Verdict.OVERFLOWS, buffer="ub", needed=needed, there=THERE)


def test_only_the_sides_of_its_configuration_are_changed() -> None:
    assert fitting.blocks_of(ARGUMENTS) == {"BLOCK_M": 128, "BLOCK_N": 64}


def test_without_a_configuration_constants_that_are_called_so_are_changed() -> None:
    assert fitting.blocks_of(Arguments(signature={}, constants={"BLOCK": 64, "BT": 32, "HEAD": 256})) == {
        "BLOCK": 64,
        "BT": 32,
    }


def test_the_nearest_come_first_and_none_that_cannot_fit() -> None:
    found = fitting.candidates(ARGUMENTS, overflow(3 * THERE))
    assert [distance for distance, _ in found] == [2, 2, 2, 3, 3, 3, 4, 4, 5][: len(found)]
    assert found[0][1] == {"BLOCK_M": 64, "BLOCK_N": 32}
    assert all(side >= 16 for _, blocks in found for side in blocks.values())


@pytest.fixture
def request_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Request:
    """Return a request to a stand-in compiler, for which more than 2,048 elements overflow."""

    def outcomes(target: object, jobs: list[tuple[Kernel, Arguments]], request: object) -> list[Outcome]:
        areas = [int(str(each.constants["BLOCK_M"])) * int(str(each.constants["BLOCK_N"])) for _, each in jobs]
        return [overflow(area) if area > 2048 else Outcome(verdict=Verdict.COMPILES) for area in areas]

    monkeypatch.setattr(judging, "outcomes", outcomes)
    chain = Toolchain(tmp_path, PAIRS[0], toolchain.Python("python3.11", (3, 11), ()))
    return Request(toolchain=chain, soc=Soc.A2, fit=40)


def judged(outcome: Outcome) -> Judged:
    kernel = Kernel(name="k", module="m", file="/m.py", line=1, cases=(ARGUMENTS,), source="s")
    return Judged(kernel=kernel, tried=((ARGUMENTS, outcome),))


def test_all_that_fit_at_the_nearest_distance_are_found(request_of: Request, tmp_path: Path) -> None:
    (found,) = fitting.fit(Target(tmp_path, ()), [judged(overflow(2 * THERE))], request_of)
    assert list(found.fits) == [
        {"BLOCK_M": 64, "BLOCK_N": 32},
        {"BLOCK_M": 128, "BLOCK_N": 16},
        {"BLOCK_M": 32, "BLOCK_N": 64},
    ]


def test_no_more_blocks_are_compiled_than_requested(request_of: Request, tmp_path: Path) -> None:
    few = Request(toolchain=request_of.toolchain, soc=Soc.A2, fit=1)
    (found,) = fitting.fit(Target(tmp_path, ()), [judged(overflow(2 * THERE))], few)
    assert found.searched == 1


def test_a_kernel_that_compiles_or_is_refused_is_left_alone(request_of: Request, tmp_path: Path) -> None:
    kept = [judged(Outcome(verdict=each)) for each in (Verdict.COMPILES, Verdict.REFUSED, Verdict.NOT_JUDGED)]
    assert fitting.fit(Target(tmp_path, ()), kept, request_of) == kept


def test_the_real_compiler_takes_what_is_proposed(judge: Judge) -> None:
    (found,) = judge(ADD.replace("BLOCK=1024", "BLOCK=65536"), fit=40)
    assert found.best.verdict is Verdict.OVERFLOWS
    assert found.fits == ({"BLOCK": 16384},)
