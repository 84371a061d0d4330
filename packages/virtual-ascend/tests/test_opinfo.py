"""PyTorch's own operator samples: some of the operators, and all of them every night."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from virtual_ascend.testing import environment

PARTS = (
    "1/60",
    pytest.param(
        "1/1",
        marks=pytest.mark.nightly(
            "packages/virtual-ascend/virtual_ascend/device", "packages/virtual-ascend/virtual_ascend/eager.py"
        ),
    ),
)
# Operators that no accelerator runs as the CPU does: sparse tensors, and indices that must be on the host.
REFUSED = {"sparse.mm.reduce", "sparse.sampled_addmm", "to_sparse", "tensor_split"}
# Their gradient asks for channels_last, which torch_npu refuses.
REFUSED |= {"nn.functional.max_unpool2d", "nn.functional.max_unpool2d.grad"}

# By more than rounding, in bfloat16. torch sums the chunked form in float32 where the device is named cpu or cuda, and
# in bfloat16 elsewhere (LinearCrossEntropyOptions._resolve_auto_acc_dtype).
DIFFERS = {("nn.functional.linear_cross_entropy.chunked_none", "bfloat16")}


@pytest.fixture(scope="module", params=PARTS)
def report(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    # In a process of its own: the samples change torch's global state.
    result = subprocess.run(
        [sys.executable, "-m", "tests.opinfo", "--part", request.param],
        env=environment(),
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    if not lines or "agrees" not in lines[-1]:
        pytest.fail(f"exit status {result.returncode}: {result.stderr[-2000:]}")
    return lines


def test_no_operator_differs_from_the_cpu(report: list[dict[str, Any]]) -> None:
    differing = [line for line in report[:-1] if line["verdict"] == "differs"]
    assert [line for line in differing if (line["operator"], line["dtype"]) not in DIFFERS] == []
    assert report[-1]["agrees"] > 10


def test_only_known_operators_are_refused(report: list[dict[str, Any]]) -> None:
    assert {line["operator"] for line in report[:-1] if line["verdict"] == "refused"} <= REFUSED
