"""PyTorch's own operator samples on phantoms: results look like the CPU's, and the CPU's refusals are refused.

A fixed part of the operators; all of them every night.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from virtual_ascend.testing import environment

ALL_ARE_PHANTOMS = "0.000001"  # MiB: one byte


# The host looks at values, or at properties that only its own kernels know.
ACCEPTED = {
    "addr",
    "aminmax",
    "bucketize",
    "complex",
    "gather",
    "index_add",
    "ldexp",
    "logical_and",
    "logical_or",
    "logical_xor",
    "masked_fill",
    "masked_scatter",
    "multinomial",
    "scatter",
    "scatter_add",
    "uniform",
}
# Also without phantoms; cov looks at weights, which are zeros here.
REFUSED = {"addbmm", "cov", "sparse.mm.reduce", "sparse.sampled_addmm", "tensor_split"}
# The CPU leaves the saved mean out in evaluation, the Meta kernel does not.
UNLIKE = {"native_batch_norm", "_native_batch_norm_legit"}


PARTS = ("1/30", pytest.param("1/1", marks=pytest.mark.nightly("packages/virtual-ascend/virtual_ascend/device/csrc")))


@pytest.fixture(scope="module", params=PARTS)
def report(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    """Return a line for each fault, and how many calls were compared."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.phantom.opinfo", "--part", request.param],
        env=environment(VIRTUAL_ASCEND_PHANTOM=ALL_ARE_PHANTOMS),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def _operators(report: list[dict[str, str]], verdict: str) -> set[str]:
    return {line["operator"] for line in report[:-1] if line["verdict"] == verdict}


def test_results_look_like_the_cpus(report: list[dict[str, str]]) -> None:
    assert _operators(report, "unlike") <= UNLIKE
    assert int(report[-1]["alike"]) > 50


def test_what_the_cpu_refuses_is_refused(report: list[dict[str, str]]) -> None:
    assert _operators(report, "accepted") <= ACCEPTED
    assert int(report[-1]["refused"]) > 10


def test_nothing_is_refused_that_the_cpu_takes(report: list[dict[str, str]]) -> None:
    assert _operators(report, "refused wrongly") <= REFUSED
