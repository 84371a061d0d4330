"""torch_npu disarms the children of a process, and verl-npu arms them again."""

from __future__ import annotations

import pytest
from testing.interpreter import Interpreter

pytestmark = pytest.mark.virtual

CHILD = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import torch; print(hasattr(torch, 'npu'))"])
"""


@pytest.mark.parametrize(
    "program",
    [
        "import verl_npu, verl",
        pytest.param(
            "import torch_npu, verl_npu, verl",
            marks=pytest.mark.nightly("packages/virtual-ascend/virtual_ascend/activation.py"),
        ),
    ],
)
def test_a_child_has_npus(interpreter: Interpreter, program: str) -> None:
    interpreter.package("verl")
    result = interpreter.run(f"{program}\n{CHILD}", VIRTUAL_ASCEND="2", VIRTUAL_ASCEND_TORCH_NPU_VERSION="2.7.1")
    assert result.out.splitlines()[-1] == "True", result.err
