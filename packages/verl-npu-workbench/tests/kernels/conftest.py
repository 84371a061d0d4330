"""The compiler, where it is there or may be downloaded, and kernels of our own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from verl_npu_workbench.kernels import fitting, judging, targets, toolchain
from verl_npu_workbench.kernels.toolchain import PAIRS, Soc, Toolchain
from verl_npu_workbench.kernels.verdict import Judged

from verl_npu import environment

ADD = """
import triton
import triton.language as tl


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask), mask=mask)


def launch(x, y, out):
    add[(1,)](x, y, out, x.numel(), BLOCK=1024)
"""

Judge = Callable[..., list[Judged]]


@pytest.fixture(scope="session")
def compiler(request: pytest.FixtureRequest) -> Toolchain:
    """Return Ascend's Triton compiler from the cache; at night it is downloaded."""
    pair = PAIRS[0]
    kept = toolchain.home() / "compilers"
    there = any(kept.glob(f"{pair.front}-{pair.back}-*/toolchain.json"))
    if not there and not request.config.getoption("--nightly"):
        pytest.skip(f"needs {pair.text}: give --nightly, or {environment.KERNELS.name}")
    return toolchain.prepare(pair)


@pytest.fixture
def judge(compiler: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Return a function that judges all kernels of a source text; nothing is kept from one test to the next."""
    verdicts = tmp_path / "verdicts"
    monkeypatch.setattr(judging, "home", lambda: verdicts)

    def call(source: str, soc: Soc = Soc.A2, **options: object) -> list[Judged]:
        file = tmp_path / "kernels_under_test.py"
        file.write_text(source)
        asked = judging.Request(toolchain=compiler, soc=soc, unconfined=bool(os.environ.get("CI")), **options)  # type: ignore[arg-type]
        target = targets.find(str(file), tmp_path)
        return fitting.fit(target, judging.judge(target, judging.read(target, asked).kernels, asked), asked)

    return call
