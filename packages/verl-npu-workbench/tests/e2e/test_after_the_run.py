"""Real checkpoints merged by upstream's own command, and compared with their shards, on virtual NPUs: SIMULATED."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import PROJECT, Smoke

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")


def called(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a module on a virtual NPU."""
    variables = {**os.environ, "PYTHONPATH": str(PROJECT), "VIRTUAL_ASCEND": "1"}
    return subprocess.run([sys.executable, "-m", *words], env=variables, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("job", "strategy", "role"),
    [("grpo", "fsdp", "actor"), ("grpo", "fsdp2", "actor"), ("ppo", "fsdp", "critic")],
    ids=["fsdp", "fsdp2", "a value model"],
)
def test_what_upstream_merges_is_the_shards_and_a_changed_weight_is_named(
    smoke: Smoke, tmp_path: Path, job: str, strategy: str, role: str
) -> None:
    settings = [f"actor_rollout_ref.{part}.strategy={strategy}" for part in ("actor", "ref")]
    settings += [f"critic.strategy={strategy}", "critic.checkpoint.save_contents=[model,hf_model]"]
    done = smoke(steps=1, settings=settings, job=job)
    assert done.returncode == 0, done.stdout + done.stderr
    (checkpoint,) = tmp_path.glob(f"*/checkpoints/global_step_1/{role}")
    target, words = tmp_path / "merged", ["--local_dir", str(checkpoint), "--target_dir", str(tmp_path / "merged")]
    merged = called("verl.model_merger", "merge", "--backend", "fsdp", *words)
    assert merged.returncode == 0, merged.stderr

    compare = ["verl_npu", "compare", "--json", "--merged", str(target), str(checkpoint)]
    said = called(*compare)
    assert said.returncode == 0, said.stderr
    tensors = safetensors.load_file(target / "model.safetensors")
    assert json.loads(said.stdout)["tensors"] == len(tensors) == 28 - (role == "actor")
    saved = safetensors.load_file(checkpoint / "huggingface" / "model.safetensors")
    assert [name for name in tensors if not torch.equal(tensors[name], saved[name].bfloat16())] == []

    tensors["model.norm.weight"][3] += 1
    safetensors.save_file(tensors, target / "model.safetensors", {"format": "pt"})
    said = called(*compare)
    assert said.returncode == 1, said.stderr
    assert json.loads(said.stdout)["differences"] == {"model.norm.weight": "1 of 128 values differ"}
