"""The targets that each pin means to patch by itself, read from its real source and looked up in real transformers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from verl_npu.features import PATCH_MODULES, UPSTREAMS, load, locks_folder
from verl_npu.features.upstreams import NPU_PATCH
from verl_npu.registry.judge.lock import read_locks
from verl_npu.registry.judge.natives import Native, confirmed, judge_natives
from verl_npu.registry.judge.verdict import Verdict, judge
from verl_npu.registry.source.reader import read_patches
from verl_npu.registry.source.tree import SourceTree
from verl_npu.registry.state import State

pytestmark = pytest.mark.upstream

PROJECT = Path(__file__).resolve().parents[2]
Source = Callable[[str, str], Path]
CLAIMED, INEFFECTIVE, ABSENT = State.NATIVE, State.FAILED, State.ABSENT

# The number of targets in transformers that each pin means to patch.
ASSIGNED = {
    "796871d7": 2,
    "v0.6.1": 12,
    "ccd7d934": 16,
    "v0.7.0": 16,
    "v0.7.1": 20,
    "v0.8.0": 28,
    "v0.9.0": 28,
    "v0.9.1": 28,
    "1dda039b": 28,
}
# What becomes of them. Those of a branch that is not taken do not count; two names of one class count once.
FOUND = {
    ("796871d7", "4.57.6"): {CLAIMED: 1, INEFFECTIVE: 1},
    ("v0.6.1", "4.57.6"): {CLAIMED: 10, INEFFECTIVE: 1},
    ("ccd7d934", "4.57.6"): {CLAIMED: 15},
    # The first stale name ends everything that comes after it.
    ("ccd7d934", "5.10.4"): {CLAIMED: 3, INEFFECTIVE: 13},
    ("v0.7.1", "4.57.6"): {CLAIMED: 19},
    ("v0.7.1", "5.10.4"): {CLAIMED: 3, INEFFECTIVE: 17},
    # It imports models that transformers 4 does not have, and upstream swallows the error.
    ("v0.8.0", "4.57.6"): {INEFFECTIVE: 26},
    ("v0.8.0", "5.10.4"): {CLAIMED: 27},
    ("v0.9.1", "4.57.6"): {CLAIMED: 19, ABSENT: 7},
    ("v0.9.1", "5.10.4"): {CLAIMED: 27},
    ("1dda039b", "5.10.4"): {CLAIMED: 27},
    ("1dda039b", "5.24.0"): {CLAIMED: 27},
}
# One upstream module covers all of these; targets that it does not assign are not left to it.
UNASSIGNED_SINCE_0_9 = {
    "fused_ops.fuse_swiglu_in_qwen2_5_vl_Qwen2MLP",
    "fused_ops.fuse_swiglu_in_qwen3_moe_Qwen3MoeMLP",
    "fused_ops.fuse_swiglu_in_qwen3_vl_moe_Qwen3VLMoeTextMLP",
    "fused_ops.fuse_multimodal_rotary_in_qwen2_5_vl",
    "fused_ops.fuse_vision_rotary_in_qwen2_5_vl",
    "fused_ops.fuse_rotary_in_qwen3_vl",
    "fused_ops.fuse_vision_rotary_in_qwen3_vl",
    "fused_ops.fuse_vision_rotary_in_qwen3_vl_moe",
}


@pytest.fixture(scope="module")
def trees(source: Source) -> Callable[[str, str], SourceTree]:
    known: dict[tuple[str, str], SourceTree] = {}

    def find(upstream: str, pin: str) -> SourceTree:
        if (upstream, pin) not in known:
            known[upstream, pin] = SourceTree.at(source(upstream, pin), (upstream,))
        return known[upstream, pin]

    return find


def judged(tree: SourceTree) -> tuple[dict[str, Verdict], list[Native]]:
    locks = {upstream.name: read_locks(locks_folder(), upstream.name) for upstream in UPSTREAMS}
    _, verdicts = judge(load(), UPSTREAMS, tree, locks)
    natives = judge_natives([NPU_PATCH], tree)
    return confirmed(verdicts, natives), natives


@pytest.mark.parametrize("pin", ASSIGNED)
def test_all_that_a_pin_assigns_in_transformers_is_read(pin: str, trees) -> None:
    tree = trees("verl", pin)
    assigned = {step.place for step in read_patches(NPU_PATCH, tree).steps if step.value}
    assert len(assigned) == ASSIGNED[pin]
    # The text has a fixed number of lines of this form.
    written = re.findall(
        r"^ *((?:modeling_\w+|Qwen2RMSNorm|PreTrainedModel)\.[\w.]+) = ", tree.read(NPU_PATCH.name).decode(), re.M
    )
    assert len(set(written)) == ASSIGNED[pin]


@pytest.mark.parametrize(("pin", "transformers"), FOUND)
def test_it_is_looked_up_in_the_transformers_that_is_there(pin: str, transformers: str, trees) -> None:
    tree = trees("verl", pin).with_packages(trees("transformers", transformers))
    natives = judge_natives([NPU_PATCH], tree)
    assert Counter(native.state for native in natives) == FOUND[pin, transformers]
    assert all(native.reason for native in natives)


@pytest.mark.parametrize("pin", ["v0.9.1", "1dda039b"])
@pytest.mark.parametrize("transformers", ["4.57.6", "5.10.4"])
def test_what_upstream_does_not_assign_is_not_left_to_it(pin: str, transformers: str, trees) -> None:
    verdicts, _ = judged(trees("verl", pin).with_packages(trees("transformers", transformers)))
    needed = {patch for patch in UNASSIGNED_SINCE_0_9 if verdicts[patch].state is State.PENDING}
    assert needed == UNASSIGNED_SINCE_0_9
    left = {patch for patch, verdict in verdicts.items() if verdict.state is State.NATIVE and verdict.claims}
    assert len(left) == (16 if transformers == "5.10.4" else 15)
    assert not any(verdict.state is State.FAILED for verdict in verdicts.values())


def renamed(wheel: Path, model: str, old: str, new: str, folder: Path) -> SourceTree:
    """Return a copy of a transformers with a name of one model changed everywhere."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".py")])
    for path in (folder / "transformers" / "models" / model).glob("*.py"):
        path.write_text(path.read_text().replace(old, new))
    return SourceTree.at(folder, ("transformers",))


def test_a_class_that_a_newer_transformers_renamed_is_named(source: Source, trees, tmp_path: Path) -> None:
    tree = renamed(source("transformers", "5.10.4"), "qwen3", "Qwen3RMSNorm", "Qwen3Norm", tmp_path)
    verdicts, natives = judged(trees("verl", "v0.9.1").with_packages(tree))
    lost = {native.target.partition(":")[2]: native.reason for native in natives if native.state is INEFFECTIVE}
    # In its function, upstream gets no further.
    assert set(lost) == {"Qwen3RMSNorm.forward", "Qwen3MLP.forward", "apply_rotary_pos_emb"}
    assert all("no transformers.models.qwen3.modeling_qwen3:Qwen3RMSNorm" in reason for reason in lost.values())
    states = {
        patch: verdict.state for patch, verdict in verdicts.items() if patch.endswith(("qwen3", "qwen3_Qwen3MLP"))
    }
    assert states == {
        "fused_ops.fuse_swiglu_in_qwen3_Qwen3MLP": INEFFECTIVE,
        "fused_ops.fuse_rotary_in_qwen3": INEFFECTIVE,
    }
    norm = verdicts["fused_ops.fuse_norm_in_qwen3_Qwen3RMSNorm"]
    assert norm.state is INEFFECTIVE
    assert "Qwen3Norm.forward" in norm.reason


def test_check_ends_with_1_and_names_it(source: Source, tmp_path: Path) -> None:
    renamed(source("transformers", "5.10.4"), "qwen3", "Qwen3RMSNorm", "Qwen3Norm", tmp_path)
    command = [sys.executable, "-m", "verl_npu", "check", "--source", str(source("verl", "v0.9.1"))]
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "  fused_ops.fuse_swiglu_in_qwen3_Qwen3MLP  failed" in done.stdout.splitlines()
    assert "no transformers.models.qwen3.modeling_qwen3:Qwen3RMSNorm" in " ".join(done.stdout.split())


@pytest.mark.parametrize("version", ["0.11.0", "v0.13.0", "v0.18.0", "v0.23.0"])
def test_vllm_ascends_patches_of_what_verl_calls_are_read(version: str, source: Source) -> None:
    tree = SourceTree.at(source("vllm-ascend", version), ("vllm_ascend",))
    modules = [module for module in PATCH_MODULES if module.name.startswith("vllm_ascend.")]
    assigned = {s.place for module in modules for s in read_patches(module, tree).steps if s.value}
    assert "vllm.distributed.parallel_state.GroupCoordinator" in assigned
    if version == "v0.23.0":
        assert "vllm.model_executor.model_loader.utils.process_weights_after_loading" in assigned
