"""Files of launches that other programs wrote, and the programs that are run for them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from verl_npu_workbench.kernels import launches
from verl_npu_workbench.kernels.toolchain import PAIRS, Python, Toolchain
from verl_npu_workbench.kernels.verdict import Origin

from verl_npu.errors import CommandError

CASE = {"signature": {"x": "*bf16"}, "constants": {"BLOCK": 64}, "divisible": ["x"], "ones": [], "guessed": False}
LAUNCH = {
    "schema": 1, "kernel": "add", "module": "ops", "file": "/ops.py", "line": 3, "grid": [4, 1], "cases": [CASE]
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "launches.jsonl"


def test_a_launch_is_read_with_its_arguments_and_grid_once(file: Path) -> None:
    file.write_text(f"{json.dumps(LAUNCH)}\n\n{json.dumps(LAUNCH)}\n")
    (kernel,) = launches.read(file)
    (arguments,) = kernel.cases
    assert (kernel.id, arguments.origin, arguments.grid) == ("ops:add", Origin.CAPTURED, (4, 1))
    assert arguments.constants == {"BLOCK": 64}


def test_a_launch_with_a_constant_that_was_not_written_down_is_not_judged(file: Path) -> None:
    file.write_text(json.dumps(LAUNCH | {"cases": [CASE | {"why": "a constant that cannot be written down"}]}))
    (kernel,) = launches.read(file)
    assert (kernel.cases, kernel.why) == ((), "a constant that cannot be written down")


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "[]", "{}", '{"schema": 2, "cases": [{}]}', '{"schema": 1, "cases": []}', "[" * 100_000, "\0"],
)
def test_what_is_no_file_of_launches_is_one_clear_error(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(
        CommandError, match=r"expected a file of recorded Triton kernel launches.*VERL_NPU_KERNEL_LAUNCHES=FILE"
    ):
        launches.read(file)


def test_a_file_that_is_not_there_is_one_clear_error(file: Path) -> None:
    with pytest.raises(CommandError, match="No such file"):
        launches.read(file)


@pytest.fixture
def chain(tmp_path: Path) -> Toolchain:
    return Toolchain(tmp_path / "compiler", PAIRS[0], Python(sys.executable, (3, 11), ()))


def test_a_program_is_told_where_to_write_and_which_triton_there_is(
    chain: Toolchain, file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = (
        "import os; print('said'); open(os.environ['VERL_NPU_KERNEL_LAUNCHES'], 'w').write("
        "os.environ['VERL_NPU_KERNEL_TRITON'] + os.environ['VIRTUAL_ASCEND']); raise SystemExit(3)"
    )
    assert launches.run([sys.executable, "-S", "-c", code], chain, file) == 3
    assert file.read_text() == f"{chain.folder}1"
    assert capfd.readouterr() == ("", "said\n")


def test_a_program_that_is_not_there_is_one_clear_error(chain: Toolchain, file: Path) -> None:
    with pytest.raises(CommandError, match=r"/no/such/program: expected a program that can be started"):
        launches.run(["/no/such/program"], chain, file)
