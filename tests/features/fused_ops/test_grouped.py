"""The grouped product of experts, with every torch_npu: some refuse the operator of its backward."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ...virtual.processes import environment

pytestmark = pytest.mark.virtual

PROGRAM = """
import json, torch, torch_npu
from verl_npu.features.fused_ops.grouped import grouped_linear
torch.manual_seed(0)
def experts(dtype, transposed, stacked, ends=(2, 2, 7)):
    x = torch.randn(7, 4, dtype=dtype).npu().requires_grad_()
    shape = (5, 4) if transposed else (4, 5)
    parts = [torch.randn(*shape, dtype=dtype).npu() for _ in ends]
    weights = [w.requires_grad_() for w in ([torch.stack(parts)] if stacked else parts)]
    out = grouped_linear(x, torch.tensor(ends).npu(), weights, transposed=transposed)
    out.square().sum().backward()
    found = [out, x.grad, *(torch.stack([w.grad for w in weights]) if not stacked else weights[0].grad)]
    twin = x.detach().requires_grad_()
    twins = [w.detach().requires_grad_() for w in parts]
    bounds = [0, *ends]
    rows = [twin[a:b] @ (w.t() if transposed else w) for a, b, w in zip(bounds, ends, twins)]
    torch.cat(rows).square().sum().backward()
    true = [torch.cat(rows), twin.grad, *(w.grad for w in twins)]
    return all(torch.allclose(f, t, rtol=2e-2, atol=1e-3) for f, t in zip(found, true, strict=True))
out = [experts(d, t, s) for d in (torch.float32, torch.bfloat16) for t in (True, False) for s in (True, False)]
x, w, ends, refused = torch.ones(4, 7).npu(), torch.ones(7, 5).npu(), torch.tensor([2, 7]).npu(), None
try: torch_npu.npu_grouped_matmul([x], [w], group_list=ends, split_item=3, group_type=2)
except RuntimeError as error: refused = str(error)
print(json.dumps([out, refused]))
"""


@pytest.mark.parametrize(("version", "refuses"), [("2.5.1", True), ("2.5.1.post1", True), ("2.7.1", False)])
def test_experts_have_their_gradients_with_every_torch_npu(version: str, refuses: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment(VERL_NPU_VIRTUAL_TORCH_NPU_VERSION=version),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    right, refused = json.loads(done.stdout.splitlines()[-1])
    assert right == [True] * 8
    assert (refused is not None) is refuses
    assert ("the gradients of experts are computed one by one" in done.stderr) is refuses
