"""A program on virtual NPUs runs its Triton kernels in Triton's interpreter, and its launches are judged as they were.

With the compiler's own Triton, SIMULATED.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from verl_npu_workbench.kernels import judging, launches
from verl_npu_workbench.kernels.toolchain import Soc, Toolchain
from verl_npu_workbench.kernels.verdict import Origin, Verdict

pytestmark = pytest.mark.virtual

PROGRAM = """
import json
import torch
import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({"BLOCK": b}) for b in (65536, 4096)], key=["n"])
@triton.jit
def tuned(x_ptr, out_ptr, stride, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets * stride, mask=offsets < n) * 2, mask=offsets < n)


@triton.jit
def product(x_ptr, y_ptr, out_ptr, sums_ptr, N: tl.constexpr):
    rows = tl.arange(0, N)
    at = rows[:, None] * N + rows[None, :]
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    tl.store(out_ptr + at, tl.dot(x, y.T))
    tl.store(sums_ptr + at, tl.where(x > y, x + y, x * y))


torch.manual_seed(1)
narrow = torch.randn(300, 3, device="npu")[:, 1]
out = torch.empty(300, device="npu")
tuned[lambda meta: (triton.cdiv(300, meta["BLOCK"]),)](narrow, out, narrow.stride(0), 300)
x, y = (torch.randn(32, 32).bfloat16() for _ in "xy")
dots, sums = torch.empty(32, 32, device="npu"), torch.empty(32, 32, dtype=torch.bfloat16, device="npu")
product[(1,)](x.npu(), y.npu(), dots, sums, N=32)
refused = ""
try:
    product[(1,)](x, y, dots.cpu(), sums.cpu(), N=32)
except NotImplementedError as error:
    refused = str(error)
print(json.dumps({
    "narrow": torch.equal(out, narrow * 2),
    "dots": torch.allclose(dots.cpu(), x.float() @ y.float().T, rtol=1e-5, atol=1e-5),
    "sums": torch.equal(sums.cpu(), torch.where(x > y, x + y, x * y)),
    "refused": refused,
}))
"""


@pytest.fixture(scope="module")
def ran(compiler: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, object], Path]:
    """Return the program's numbers, and the file with its launches."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "program.py").write_text(PROGRAM)
    variables = os.environ | {
        "VIRTUAL_ASCEND": "1",
        "VERL_NPU_KERNEL_LAUNCHES": str(folder / "launches.jsonl"),
        "VERL_NPU_KERNEL_TRITON": str(compiler.folder),
    }
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "by Triton's interpreter, slowly (SIMULATED)" in done.stderr
    return json.loads(done.stdout), folder / "launches.jsonl"


@pytest.mark.parametrize("what", ["narrow", "dots", "sums"])
def test_a_kernel_is_computed_in_the_memory_of_the_virtual_npu(ran: tuple[dict[str, object], Path], what: str) -> None:
    assert ran[0][what] is True


def test_tensors_of_the_cpu_are_refused_as_an_npu_would(ran: tuple[dict[str, object], Path]) -> None:
    assert "it runs on NPUs only" in str(ran[0]["refused"])


def test_launches_are_judged_with_their_own_arguments(
    ran: tuple[dict[str, object], Path], compiler: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "home", lambda: tmp_path)
    request = judging.Request(toolchain=compiler, soc=Soc.A2, unconfined=bool(os.environ.get("CI")))
    judged, unread = launches.judge(launches.read(ran[1]), request)
    assert not unread
    tuned, product = judged
    assert [outcome.verdict for _, outcome in tuned.tried] == [Verdict.OVERFLOWS, Verdict.COMPILES]
    assert tuned.arguments is not None
    assert (tuned.arguments.origin, tuned.arguments.label) == (Origin.CAPTURED, "BLOCK=4096")
    assert product.best.verdict is Verdict.COMPILES
    assert product.arguments is not None
    assert product.arguments.signature["x_ptr"] == "*bf16"
    assert product.arguments.grid == (1,)
