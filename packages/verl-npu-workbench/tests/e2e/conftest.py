from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from virtual_ascend.testing.fixtures import torch_npu as torch_npu

from . import serving

if TYPE_CHECKING:
    from harness.training import Outcome

PROJECT = Path(__file__).resolve().parents[4]
Smoke = Callable[..., subprocess.CompletedProcess[str]]
Train = Callable[..., "Outcome"]
PlanWords = Callable[[Sequence[str], Sequence[str]], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def pin() -> str:
    try:
        version = importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("no verl in this environment: use the one that scripts/test.sh makes")
    if version != "0.6.1":
        pytest.skip(f"verl {version} is installed here, and the job is written for 0.6.1")
    return f"v{version}"


@pytest.fixture(scope="module", params=serving.PYTHONS or [None])
def python(request: pytest.FixtureRequest) -> str:
    """Return the Python of each available environment with vllm-ascend."""
    if request.param is None:
        pytest.skip("set VERL_NPU_VLLM_ASCEND to the Python of an environment with vllm-ascend")
    return str(request.param)


@pytest.fixture
def plan_words(pin: str, tmp_path: Path) -> PlanWords:
    """Return a function that runs `verl-npu plan` with the installed verl, given options and a job's words."""

    def run(options: Sequence[str], job: Sequence[str]) -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("VIRTUAL_ASCEND")}
        variables["PYTHONPATH"] = os.pathsep.join([str(PROJECT), variables.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        command = [sys.executable, "-m", "verl_npu", "plan", "--output", str(tmp_path / "out"), *options, "--", *job]
        return subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def smoke(pin: str, tmp_path: Path) -> Smoke:
    """Return a function that runs a job for some steps with an interpreter's own verl; results go to `tmp_path`."""

    def run(
        python: str = sys.executable,
        steps: int = 6,
        before: Sequence[str] = (),
        settings: Sequence[str] = (),
        job: str = "grpo",
        **changes: str,
    ) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ASCEND"} | changes
        asked = ["--pin", pin, "--job", job, "--steps", str(steps), "--timeout", "1500", "--output", str(tmp_path)]
        return subprocess.run(
            [*before, python, str(PROJECT / "scripts" / "smoke.py"), "--no-venv", *asked, "--", *settings],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            cwd=tmp_path,
        )

    return run


@pytest.fixture
def train(pin: str, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Return a function that trains a job in this process's environment, as smoke.sh does, and returns its outcome."""
    for needed in ("torch", "pandas", "safetensors", "tokenizers", "transformers"):
        pytest.importorskip(needed)
    from harness import machine, training
    from harness.request import parse

    monkeypatch.delenv("VIRTUAL_ASCEND", raising=False)

    def run(
        job: str, steps: int, output: Path, settings: Sequence[str], checkout: Path | None = None, wheel: str = ""
    ) -> Outcome:
        words = ["--pin", pin, "--job", job, "--steps", str(steps), "--output", str(output), "--no-venv"]
        words += ["--verl", str(checkout)] if checkout else []
        words += ["--torch-npu", wheel] if wheel else []
        request = parse([*words, "--", *settings], "smoke.sh", smoke=True)
        outcome = training.train(request, machine.look(request.npus), lambda step, metrics: None)
        assert outcome.trained, f"{outcome.failure}\n{training.tail(outcome.log)}"
        return outcome

    return run
