"""verl's fused loss gets blocks that fit where the compiler refuses upstream's: SIMULATED, with Ascend's compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from verl_npu import environment
from verl_npu.features.fused_kernels import (
    BLOCKS,
    fit_blocks_of_the_fused_loss,
    fit_blocks_of_the_fused_loss_gradient,
)
from verl_npu.tools.kernels import judging, targets, toolchain
from verl_npu.tools.kernels.toolchain import PAIRS, Soc, Toolchain
from verl_npu.tools.kernels.verdict import Verdict

MODULE = "verl.utils.kernel.kernels"
OVERFLOW = "error: ub overflow, requires 8577280 bits while 1572864 bits available!"
PATCHES = dict(zip(BLOCKS, (fit_blocks_of_the_fused_loss, fit_blocks_of_the_fused_loss_gradient), strict=True))


class Compiler:
    """Refuses upstream's blocks, and then any that it is told to."""

    def __init__(self, kernels: ModuleType, name: str, text: str = OVERFLOW) -> None:
        self.kernels, self.name, self.text = kernels, name, text
        self.seen: list[dict[str, int]] = []

    def __call__(self, *given: object, **named: object) -> tuple[object, ...]:
        blocks = dict(getattr(self.kernels, self.name).configs[0].kwargs)
        self.seen.append(blocks)
        if blocks == BLOCKS[self.name].upstreams:
            raise RuntimeError(self.text)
        return (*given, named)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """verl's module with its kernels, as far as it is asked."""
    module = ModuleType(MODULE)
    for name, blocks in BLOCKS.items():
        setattr(module, name, SimpleNamespace(configs=[SimpleNamespace(kwargs=dict(blocks.upstreams))]))
    monkeypatch.setitem(sys.modules, MODULE, module)
    return module


@pytest.mark.parametrize("name", BLOCKS)
def test_a_kernel_that_overflows_is_launched_again_with_our_blocks(
    kernels: ModuleType, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler = Compiler(kernels, name)
    assert PATCHES[name](compiler, 1, temperature=2.0) == (1, {"temperature": 2.0})
    assert compiler.seen == [BLOCKS[name].upstreams, BLOCKS[name].ours]
    assert f"no room for the blocks of verl's kernel {name}" in capsys.readouterr().err
    PATCHES[name](compiler)
    assert compiler.seen[2:] == [BLOCKS[name].ours]


@pytest.mark.parametrize("name", BLOCKS)
def test_a_compiler_that_takes_upstreams_blocks_is_left_alone(kernels: ModuleType, name: str) -> None:
    assert PATCHES[name](lambda *given: given, 1) == (1,)
    assert getattr(kernels, name).configs[0].kwargs == BLOCKS[name].upstreams


@pytest.mark.parametrize("name", BLOCKS)
def test_another_error_is_not_ours(kernels: ModuleType, name: str) -> None:
    compiler = Compiler(kernels, name, "out of memory")
    with pytest.raises(RuntimeError, match="out of memory"):
        PATCHES[name](compiler)
    assert len(compiler.seen) == 1


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_that_upstream_has_changed_are_left_alone(kernels: ModuleType, name: str) -> None:
    getattr(kernels, name).configs[0].kwargs["BLOCK_SIZE_M"] = 96

    def refuse() -> None:
        raise RuntimeError(OVERFLOW)

    with pytest.raises(RuntimeError, match="ub overflow"):
        PATCHES[name](refuse)
    assert getattr(kernels, name).configs[0].kwargs["BLOCK_SIZE_M"] == 96


@pytest.fixture(scope="module")
def compiler(request: pytest.FixtureRequest) -> Toolchain:
    """Ascend's compiler; without it, and by day, these tests are left out: they take a minute."""
    if not any(toolchain.home().glob("compilers/*/toolchain.json")) and not request.config.getoption("--nightly"):
        pytest.skip(f"needs {PAIRS[0].text}: give --nightly, or {environment.KERNELS.name}")
    return toolchain.prepare(PAIRS[0])


@pytest.mark.parametrize("soc", [Soc.A2, Soc.A3])
def test_the_compiler_refuses_upstreams_blocks_and_takes_ours(compiler: Toolchain, tmp_path: Path, soc: Soc) -> None:
    target = targets.find(MODULE, tmp_path)
    request = judging.Request(toolchain=compiler, soc=soc, unconfined=bool(os.environ.get("CI")))
    found = [each for each in judging.read(target, request).kernels if each.name in BLOCKS]
    assert len(found) == len(BLOCKS)
    for kernel in found:
        (case,) = kernel.cases
        assert {name: case.constants[name] for name in BLOCKS[kernel.name].upstreams} == BLOCKS[kernel.name].upstreams
        ours = replace(case, constants={**case.constants, **BLOCKS[kernel.name].ours})
        outcomes = judging.outcomes(target, [(kernel, case), (kernel, ours)], request)
        assert [each.verdict for each in outcomes] == [Verdict.OVERFLOWS, Verdict.COMPILES], kernel.name


PROGRAM = """
import contextlib, json, sys
import torch
import torch_npu
from torch_npu.contrib import transfer_to_npu

torch.cuda.nvtx.range = lambda name: contextlib.nullcontext()  # builds without NVTX raise
import verl
from verl.utils.kernel import kernels, linear_cross_entropy
import verl_npu
from verl_npu.features import fused_kernels

for name, blocks in fused_kernels.BLOCKS.items():
    getattr(kernels, name).configs[0].kwargs.update(getattr(blocks, sys.argv[1]))
torch.manual_seed(0)
tokens, hidden_size, vocabulary = 40, 128, 1024
hidden = (torch.randn(tokens, hidden_size) / 4).npu().requires_grad_()
weight = (torch.randn(vocabulary, hidden_size) / 4).npu().requires_grad_()
labels = torch.randint(0, vocabulary, (tokens,)).npu()
ones = torch.ones(tokens).npu()
losses = linear_cross_entropy.linear_cross_entropy(hidden, weight, labels, 1.0, "none")
torch.autograd.backward(losses, (ones, ones))
found = [each.detach().cpu() for each in (*losses, hidden.grad, weight.grad)]
hidden.grad = weight.grad = None
logs = torch.log_softmax(hidden @ weight.T, -1)
expected = (logs.gather(1, labels[:, None])[:, 0], -(logs.exp() * logs).sum(-1))
torch.autograd.backward(expected, (ones, ones))
wanted = [each.detach().cpu() for each in (*expected, hidden.grad, weight.grad)]
states = verl_npu.status()["features"]["fused_kernels"]["patches"]
print(json.dumps({
    "worst": max((a - b).abs().max().item() for a, b in zip(found, wanted)),
    "states": {name: str(state) for name, state in states.items()},
}))
"""


@pytest.mark.virtual
@pytest.mark.parametrize("blocks", ["ours", "upstreams"])
def test_the_numbers_are_torchs_in_tritons_interpreter(compiler: Toolchain, tmp_path: Path, blocks: str) -> None:
    variables = os.environ | {"VIRTUAL_ASCEND": "1", environment.KERNEL_TRITON.name: str(compiler.folder)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, blocks],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["worst"] < 2e-5
    assert all("applied" in state for state in said["states"].values()), said["states"]
