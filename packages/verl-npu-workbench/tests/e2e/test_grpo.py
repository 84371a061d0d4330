"""The main job: GRPO of two steps, with a wheel of verl-npu beside copies of the upstreams.

No file of the upstreams changes on install, in the run, or on uninstall.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from verl_npu_workbench.diagnosis.judgement import Conclusion, diagnose

from .conftest import PROJECT, Smoke

BESIDE = ("verl-npu-workbench", "virtual-ascend")
UPSTREAMS = ("verl", "transformers", "hydra-core", "tensordict")
STEPS = 2


def digests(site: Path) -> dict[str, str]:
    """Return the digest of every file in a folder, without the interpreter's own bytecode."""
    return {
        str(path.relative_to(site)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(site.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return the site-packages of a new environment with copies of the upstreams, which borrows everything else."""
    made = tmp_path / "environment"
    venv.create(made, symlinks=True)
    folder = made / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    borrowed = Path(sysconfig.get_path("purelib"))
    for name in UPSTREAMS:
        for file in importlib.metadata.files(name) or ():
            source = borrowed / file
            if source.is_file() and ".." not in file.parts:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, folder / file)
    (folder / "borrowed.pth").write_text(f"{borrowed}\n")
    return folder


@pytest.mark.e2e
def test_the_job_trains_all_processes_agree_and_no_file_of_an_upstream_changes(
    pin: str,
    site: Path,
    make_wheel: Callable[[Path, Path], Path],
    smoke: Smoke,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Imports from PYTHONPATH would come before the wheel.
    monkeypatch.delenv("PYTHONPATH", raising=False)
    python = str(tmp_path / "environment" / "bin" / "python")
    before = digests(site)
    assert any(name.startswith("verl/trainer/") for name in before)

    def pip(*arguments: str | Path) -> None:
        subprocess.run([sys.executable, "-m", "pip", "--python", python, "--quiet", *arguments], check=True)

    sources = (PROJECT, *(PROJECT / "packages" / name for name in BESIDE))
    pip("install", "--no-deps", *(make_wheel(source, tmp_path) for source in sources))
    where = "import verl, verl_npu, sys; print(verl.__file__, verl_npu.__file__)"
    places = subprocess.run(
        [python, "-c", where], capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout.split()
    assert all(place.startswith(str(site)) for place in places), "the copies are not what is run"

    answer = smoke(python=python, steps=STEPS)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    check_result(json.loads((tmp_path / "smoke.json").read_text()), pin)
    assert diagnose([next(tmp_path.glob("grpo-*/train.log"))]).verdict is Conclusion.NONE
    during = digests(site)
    assert {name: during.get(name) for name in before} == before

    pip("uninstall", "--yes", "verl-npu", *BESIDE)
    assert digests(site) == before


def check_result(result: dict[str, object], pin: str) -> None:
    """Check that each process has the expected features; smoke has compared the manifests."""
    assert (result["pin"], result["job"], result["simulated"]) == (pin, "grpo", True)
    rewards, features = result["reward"], result["features"]
    assert isinstance(rewards, list)
    assert isinstance(features, dict)
    assert result["steps"] == STEPS == len(rewards)
    assert all(0 <= reward <= 1 for reward in rewards)
    # The driver, the task runner and two workers.
    roles = [name.partition(":")[0] for name in sorted(features)]
    assert roles == ["TaskRunner", "WorkerDict", "WorkerDict", "driver"]
    found = {name: {process[name] for process in features.values()} for name in features.popitem()[1]}
    assert found == {
        "device": {"applied"},
        "attention": {"applied"},
        "fused_ops": {"applied"},
        "host_copies": {"native"},
        "micro_batches": {"applied"},
        "rollout": {"applied"},
        # The wheel has no recipes, and the virtual rollout no vLLM model to prepare.
        "engine_sleep": {"absent"},
        "weight_sync": {"pending"},
        # The loss is not verl's fused one.
        "fused_kernels": {"pending"},
        # The model has no linear attention.
        "linear_attention": {"pending"},
        # Megatron is not installed.
        "megatron": {"absent"},
        # A process without a trainer compares nothing.
        "fleet": {"applied", "pending"},
    }
