"""A torch_npu that cannot be imported, and the state that its import leaves behind: in processes of their own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from testing.interpreter import SHOW, Interpreter

from verl_npu.ascend.software import problem

MISSING = "{}: cannot open shared object file: No such file or directory"
TELL = "import os; print(os.environ.get('TORCH_DEVICE_BACKEND_AUTOLOAD'))"
# The steps of torch_npu's own import before it imports torch, in the versions that leave it so.
DISARMS = """
import os
ORG_AUTOLOAD = os.getenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "1")
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
"""
SET_ENV = "source /usr/local/Ascend/ascend-toolkit/set_env.sh"


def broken(interpreter: Interpreter, error: str = "ImportError", library: str = "libhccl.so") -> Interpreter:
    """Install a torch_npu whose libraries are missing, and a verl."""
    interpreter.package("torch_npu", f"raise {error}({MISSING.format(library)!r})")
    interpreter.package("verl")
    return interpreter


@pytest.mark.parametrize(("error", "library"), [("ImportError", "libhccl.so"), ("OSError", "libascendcl.so")])
def test_without_cann_one_line_says_what_to_source(interpreter: Interpreter, error: str, library: str) -> None:
    result = broken(interpreter, error, library).run(f"import verl_npu, verl; {SHOW}")
    assert (result.code, result.status["active"]) == (0, False)
    (line,) = result.err.splitlines()
    assert library in line
    assert SET_ENV in line
    assert "verl-npu stays off in this process" in line


def test_without_the_driver_the_line_says_that_and_not_what_to_source(interpreter: Interpreter) -> None:
    (line,) = broken(interpreter, library="libascend_hal.so").run("import verl_npu, verl").err.splitlines()
    assert "mount /usr/local/Ascend/driver" in line
    assert "source" not in line


def test_another_error_is_said_as_it_is(interpreter: Interpreter) -> None:
    interpreter.package("torch_npu", "raise RuntimeError('two devices')")
    interpreter.package("verl")
    (line,) = interpreter.run("import verl_npu, verl").err.splitlines()
    assert "RuntimeError: two devices" in line
    assert "python -c 'import torch_npu'" in line


@pytest.mark.parametrize(
    ("switch", "order"),
    [({"VERL_NPU_STRICT": "1"}, "verl_npu, verl"), ({"VERL_NPU": "on"}, "verl, verl_npu")],
    ids=["strict", "on"],
)
def test_a_user_who_insists_gets_an_error(interpreter: Interpreter, switch: dict[str, str], order: str) -> None:
    result = broken(interpreter).run(f"import {order}", **switch)
    assert result.code != 0
    assert "AscendSoftwareError: torch_npu: the installed torch_npu" in result.err
    assert SET_ENV in result.err


@pytest.mark.upstream
@pytest.mark.parametrize(("command", "strict", "status"), [("check", "1", 1), ("status", "0", 0), ("status", "1", 2)])
def test_the_commands_say_it_and_fail_under_strict(
    interpreter: Interpreter, command: str, strict: str, status: int
) -> None:
    pytest.importorskip("verl")
    broken(interpreter)
    program = f"import sys; sys.argv = ['verl-npu', {command!r}]; from verl_npu.cli import main; main()"
    if command == "check":
        (interpreter.site / "verl/__init__.py").unlink()  # so that the installed verl is judged
        (interpreter.site / "verl").rmdir()
    result = interpreter.run(program, VERL_NPU_STRICT=strict, COLUMNS="200")
    said = " ".join(result.out.split() + result.err.split())
    assert SET_ENV in said
    assert result.code == status, said


@pytest.mark.upstream
def test_a_torch_npu_that_works_is_not_mentioned_by_check(interpreter: Interpreter) -> None:
    pytest.importorskip("verl")
    interpreter.package("torch_npu")
    program = "import sys; sys.argv = ['verl-npu', 'check', '--json']; from verl_npu.cli import main; main()"
    result = interpreter.run(program, VERL_NPU_STRICT="1")
    assert json.loads(result.out)["torch_npu"] is None
    assert result.code == 0


@pytest.mark.parametrize(("before", "after"), [({}, "None"), ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, "0")])
def test_our_import_of_torch_npu_leaves_the_children_as_they_were(
    interpreter: Interpreter, before: dict[str, str], after: str
) -> None:
    interpreter.package("torch_npu", DISARMS)
    interpreter.package("verl")
    assert interpreter.run(f"import verl_npu, verl; {TELL}", **before).out.split() == [after]


@pytest.mark.parametrize(("before", "after"), [({}, "1"), ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, "0")])
def test_what_the_users_own_import_has_disarmed_is_armed_again(
    interpreter: Interpreter, before: dict[str, str], after: str
) -> None:
    interpreter.package("torch_npu", DISARMS)
    interpreter.package("verl")
    assert interpreter.run(f"import torch_npu, verl_npu, verl; {TELL}", **before).out.split() == [after]


def test_what_lies_in_the_current_directory_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m` puts the current directory on the path of the process that asks."""
    (tmp_path / "torch_npu").mkdir()
    (tmp_path / "torch_npu" / "__init__.py").write_text(f"open({str(tmp_path / 'reached')!r}, 'w'); raise ImportError")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    monkeypatch.setattr("verl_npu.ascend.software.virtual_npus", lambda: 0)
    assert problem() is None
    assert not (tmp_path / "reached").exists()
