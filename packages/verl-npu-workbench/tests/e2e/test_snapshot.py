"""A memory snapshot of a real run, which verl's own profiler wrote under the torch_npu wheel, beside the run's plan.

It needs verl 0.9.1 and a torch with a wheel of torch_npu.
"""

from __future__ import annotations

import json
import os
from importlib import metadata
from pathlib import Path

import pytest

for needed in ("torch", "pandas", "tokenizers", "transformers"):
    pytest.importorskip(needed)

from harness import jobs  # noqa: E402  # needs them

from .conftest import PROJECT, PlanWords, Train  # noqa: E402

pytestmark = [pytest.mark.e2e, pytest.mark.virtual, pytest.mark.nightly]

STEPS, NPUS, ROUNDED = 2, 2, 512
LEAKING = """
import os
if "LEAKS" in os.environ:
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook
    kept = []
    def keep(*_):
        kept.append(torch.ones(2 << 20, device="npu"))
    register_optimizer_step_pre_hook(keep)
"""
LEAKED = 8 << 20
SETTINGS = (
    "model.external_lib=leaking",
    # Without flash attention's mask, which is larger than everything else of this model.
    "+model.override_config.attn_implementation=sdpa",
)


@pytest.fixture
def pin() -> str:
    version = metadata.version("verl")
    if version != "0.9.1":
        pytest.skip(f"needs verl 0.9.1; found {version}")
    return f"v{version}"


def test_a_run_held_what_was_planned_and_a_leak_is_named(
    train: Train, plan_words: PlanWords, torch_npu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaking.py").write_text(LEAKING)
    paths = [str(tmp_path), str(PROJECT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    profiler = ("profiler.tool=torch_memory", "profiler.enable=True", f"profiler.save_path={tmp_path / 'snapshots'}")
    with monkeypatch.context() as of_run:
        of_run.setenv("PYTHONPATH", os.pathsep.join([str(torch_npu), *paths]))
        of_run.setenv("LEAKS", "1")
        interval = f"trainer.profile_interval=[1,{STEPS}]"
        outcome = train("sft", STEPS, tmp_path, (*SETTINGS, *profiler, interval), wheel=_version(torch_npu))
    (snapshot,) = (tmp_path / "snapshots").glob("*/torch_memory_rank0_*.pickle")
    words = jobs.JOBS["sft"].arguments(outcome.plan)
    job = ["torchrun", f"--nproc_per_node={NPUS}", "-m", *words[words.index(outcome.plan.pin.sft) :], *SETTINGS]
    done = plan_words(("--no-tries", "--against", str(snapshot)), job)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out" / "plan.json").read_text())["against"]
    assert found["held"].pop("not planned") == STEPS * LEAKED
    [[place, leaked]] = found["places"].items()
    assert (place.partition(" <")[0].rpartition("/")[2], leaked) == ("leaking.py:keep", STEPS * LEAKED)
    # The peak is in the last step of the optimizer, and a block is rounded up.
    assert set(found["held"]) >= {"weights", "gradients", "optimizer's state"}
    for holder, planned in found["planned"].items():
        held = found["held"].get(holder, 0)
        assert held <= planned <= held + 16 * ROUNDED, holder
    assert "not planned, 0.016 GiB: " in done.stdout


def _version(torch_npu: Path) -> str:
    (info,) = torch_npu.glob("torch_npu-*.dist-info")
    return info.name.removeprefix("torch_npu-").removesuffix(".dist-info")
