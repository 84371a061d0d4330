"""The kernels of a rehearsed job are judged with its own arguments, whatever its programs could have invented."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from verl_npu_workbench.kernels import judging
from verl_npu_workbench.kernels.report import Report
from verl_npu_workbench.kernels.targets import Target
from verl_npu_workbench.kernels.toolchain import PAIRS, Python, Soc, Toolchain
from verl_npu_workbench.kernels.verdict import Arguments, Kernel, Outcome, Verdict
from verl_npu_workbench.rehearse import kernels

from verl_npu.features.fused_kernels import BLOCKS, MODULE

NAME, OURS = next(iter(BLOCKS.items()))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Return the folder that a job writes into."""
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree with a file for verl's kernels."""
    file = tmp_path / "tree" / "verl" / "utils" / "kernel" / "kernels.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    return tmp_path / "tree"


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Toolchain:
    """Install a compiler that accepts our blocks, and overflows with upstream's."""

    def read(target: Target, request: judging.Request) -> judging.Read:
        found = (Kernel(name=NAME, module=MODULE, file=str(each), line=1, source="source") for each in target.files)
        return judging.Read(tuple(found), {})

    def outcomes(target: Target, jobs: Sequence[tuple[Kernel, Arguments]], request: object) -> list[Outcome]:
        return [
            Outcome(verdict=Verdict.COMPILES)
            if case.constants["BLOCK_SIZE_M"] == OURS.ours["BLOCK_SIZE_M"]
            else Outcome(verdict=Verdict.OVERFLOWS, buffer="ub", needed=8577280, there=1572864)
            for _, case in jobs
        ]

    monkeypatch.setattr(judging, "read", read)
    monkeypatch.setattr(judging, "outcomes", outcomes)
    return Toolchain(tmp_path, PAIRS[0], Python(sys.executable, (3, 11), ()))


def launch(file: Path) -> str:
    case = {"signature": {"x": "*bf16"}, "constants": dict(OURS.upstreams), "guessed": False}
    said = {"schema": 1, "kernel": NAME, "module": MODULE, "file": str(file), "grid": [4], "cases": [case]}
    return json.dumps(said) + "\n"


def judged(compiler: Toolchain, tree: Path, written: Path, states: Sequence[str] = ("applied",)) -> Report:
    own = written.parent / "own"
    own.mkdir()
    return kernels.judge(compiler, Soc.A2, tree, (written, own), {"fused_kernels": states}, unconfined=True)


@pytest.mark.parametrize(
    ("states", "verdict"), [(["pending", "applied"], Verdict.COMPILES), (["off"], Verdict.OVERFLOWS)]
)
def test_a_fault_that_verl_npu_fixes_is_none_of_the_job(
    compiler: Toolchain, tree: Path, written: Path, states: list[str], verdict: Verdict
) -> None:
    (written / "launches.jsonl").write_text(launch(tree / "verl/utils/kernel/kernels.py"))
    (found,) = judged(compiler, tree, written, states).judged
    assert found.best.verdict is verdict
    assert found.arguments is not None
    assert ("which verl-npu uses" in found.arguments.label) is (verdict is Verdict.COMPILES)


def test_a_job_without_kernels_has_none_judged(compiler: Toolchain, tree: Path, written: Path) -> None:
    assert judged(compiler, tree, written).judged == ()


def test_a_file_that_the_job_could_not_import_is_not_read(
    compiler: Toolchain, tree: Path, written: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "private.py"
    secret.write_text("")
    (written / "launches.jsonl").write_text(launch(secret))
    (found,) = judged(compiler, tree, written).judged
    assert found.best.verdict is Verdict.NOT_JUDGED
    assert "private.py is not in the job's packages" in found.best.why


def test_a_link_in_the_place_of_the_launches_is_not_followed(
    compiler: Toolchain, tree: Path, written: Path, tmp_path: Path
) -> None:
    (tmp_path / "private").write_text(launch(tree / "verl/utils/kernel/kernels.py"))
    (written / "launches.jsonl").symlink_to(tmp_path / "private")
    assert judged(compiler, tree, written).judged == ()
