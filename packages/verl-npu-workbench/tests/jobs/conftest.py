from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from verl_npu_workbench.jobs import capture as capture_module
from verl_npu_workbench.jobs.capture import Capture, capture
from verl_npu_workbench.jobs.trainer import Trainer, trainer_of
from verl_npu_workbench.sandbox import Limits, sandbox_program

from verl_npu.errors import SandboxError

TRAINER = """
import hydra


@hydra.main(config_path="config", config_name="main", version_base=None)
def main(config):
    pass
"""
CONFIGURATION = """
defaults:
  - actor: small
  - _self_
data:
  train_batch_size: 1024
  max_prompt_length: 512
  train_files: ~/data/train.parquet
trainer:
  n_gpus_per_node: 8
  nnodes: 1
  logger: [console, wandb]
  device: cuda
  total_steps: null
copy: ${data.train_batch_size}
"""
ACTOR = """
lr: 1.0e-06
path: ~/models/Qwen2.5-7B
"""
COMMAND = "python3 -m verl.trainer.main_small data.train_batch_size=8 trainer.nnodes=1 actor.lr=1e-5"

Write = Callable[..., Path]
Captured = Callable[..., Capture]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a source tree laid out like verl's."""
    root = tmp_path / "tree"
    trainer = root / "verl" / "trainer"
    (trainer / "config" / "actor").mkdir(parents=True)
    (root / "verl" / "__init__.py").touch()
    (trainer / "__init__.py").touch()
    (trainer / "main_small.py").write_text(TRAINER)
    (trainer / "config" / "main.yaml").write_text(CONFIGURATION)
    (trainer / "config" / "actor" / "small.yaml").write_text(ACTOR)
    (root / "examples").mkdir()
    return root


@pytest.fixture
def write(tree: Path) -> Write:
    """Return a function that writes a script, of these lines, into the tree, or elsewhere."""

    def make(*lines: str, name: str = "examples/run.sh", folder: Path | None = None) -> Path:
        path = (folder or tree) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*lines, ""]))
        return path

    return make


@pytest.fixture
def sandboxed() -> None:
    """Skip if there can be no sandbox here."""
    try:
        sandbox_program()
    except SandboxError as error:
        pytest.skip(str(error))


@pytest.fixture
def captured(sandboxed: None, write: Write, tree: Path, monkeypatch: pytest.MonkeyPatch) -> Captured:
    """Return a function that captures a script of these lines, in seconds."""

    def run(
        *lines: str,
        arguments: Sequence[str] = (),
        given: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        **where: object,
    ) -> Capture:
        if limits is not None:
            monkeypatch.setattr(capture_module, "_LIMITS", limits)
        return capture(write(*lines, **where), tree, arguments, given)

    return run


@pytest.fixture
def trained(captured: Captured) -> Callable[..., Trainer]:
    """Return a function that finds the trainer of a script of these lines."""
    return lambda *lines, **how: trainer_of(captured(*lines, **how))


@pytest.fixture(autouse=True)
def in_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("STAND_IN_")]:
        monkeypatch.delenv(name)
