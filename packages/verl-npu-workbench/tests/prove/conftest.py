from __future__ import annotations

import pytest
from verl_npu_workbench.prove.bundle import Proof
from verl_npu_workbench.prove.corpus import Key, Kind, Observation, Result
from verl_npu_workbench.prove.folder import Asked
from verl_npu_workbench.prove.result import Check, StageResult, Verdict, judged


def result(**changes: object) -> Result:
    """Return the result of an operator."""
    facts: dict[str, object] = {
        "name": "result",
        "dtype": "torch.float32",
        "shape": "[2]",
        "digest": "0" * 32,
        "sample": (1.0, 2.0),
        "units": {"largest": 0.5},
    }
    return Result(**(facts | changes))  # type: ignore[arg-type]


def operator(**changes: object) -> Observation:
    """Return the observation of an operator on an NPU."""
    facts: dict[str, object] = {"key": Key(Kind.OPERATOR, "exp", "float32"), "results": (result(),)}
    return Observation(**(facts | changes))  # type: ignore[arg-type]


def stage(*checks: Check, name: str = "device") -> StageResult:
    """Return the result of a stage with these checks."""
    return judged(name, checks, 1.5, 30.0)


@pytest.fixture
def asked() -> Asked:
    return Asked(made="2026-01-31", minutes=10.0, npus=0, simulated="2", versions={"torch": "2.13.0"})


@pytest.fixture
def proof(asked: Asked) -> Proof:
    good = Check(name="memory", verdict=Verdict.PASSED, found="8 MiB", figures={"GiB": 8.0})
    return Proof(
        asked=asked, made_by="0.1.0", notes={"device": "Ascend910B"}, stages=(stage(good),), corpus=(operator(),)
    )
