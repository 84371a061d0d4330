"""Each guard: what it finds in a wrong script, and that a right one has none of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from verl_npu.rehearse.guards import GUARDS, Finding, Script, findings
from verl_npu.rehearse.settings import Settings
from verl_npu.rehearse.trainer import Trainer

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
RIGHT: Mapping[str, object] = {
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 64,
    "data.train_files": "relative.parquet",
    "trainer.device": "npu",
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 2,
    "actor_rollout_ref.model.use_fused_kernels": False,
    f"{ACTOR}.strategy": "fsdp",
    f"{ACTOR}.ppo_mini_batch_size": 64,
    f"{ACTOR}.ulysses_sequence_parallel_size": 4,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.n": 4,
    f"{ROLLOUT}.tensor_model_parallel_size": 4,
    f"{ROLLOUT}.free_cache_engine": True,
}
MEGATRON = {
    f"{ACTOR}.strategy": "megatron",
    f"{ACTOR}.megatron.tensor_model_parallel_size": 4,
    f"{ACTOR}.megatron.pipeline_model_parallel_size": 2,
    f"{ACTOR}.megatron.context_parallel_size": 1,
}


def script(
    settings: Mapping[str, object] | None = None,
    overrides: tuple[str, ...] = ("trainer.device=npu", "data.train_batch_size=64"),
    exports: Mapping[str, str] | None = None,
    text: str = "",
    runtime: Mapping[str, str] | None = None,
    ranks: int = 0,
    pin: str = "v0.6.1",
    nodes: int = 1,
    counted: bool = True,
) -> Script:
    """A right script, but for what is given."""
    trainer = Trainer("verl.trainer.main_ppo", overrides, (), ranks, Path("/"), exports or {}, nodes, counted)
    return Script(trainer, Settings({**RIGHT, **(settings or {})}), pin, text, runtime is not None, runtime or {})


def found(given: Script) -> list[tuple[str, bool]]:
    return [(finding.rule, finding.refused) for finding in findings(given)]


RIGHT_ONES = {
    "as it is": script(),
    "Megatron": script(MEGATRON),
    "torchrun": script({"trainer.n_gpus_per_node": None, "trainer.nnodes": None}, ranks=8),
    "torchrun on two nodes": script({"trainer.n_gpus_per_node": 8, "trainer.nnodes": 1}, ranks=2, nodes=2),
    "torchrun that counts the NPUs itself": script(ranks=1, counted=False),
    "a rollout of its own": script({"rollout.n_gpus_per_node": 4, "rollout.nnodes": 1}),
    "a stream without batches": script({"data.train_batch_size": 0}),
    "a batch that is divided dynamically": script(
        {"data.train_batch_size": 3, f"{ACTOR}.ppo_mini_batch_size": 3, f"{ACTOR}.use_dynamic_bsz": True}
    ),
    "the same value twice": script(overrides=("a.b=1", "a.b=1")),
    "an empty text": script(overrides=("trainer.default_hdfs_dir=",)),
    "a variable that is exported": script(text="export HCCL_X=1\nHCCL_X=2\n", exports={"HCCL_X": "2"}),
    "a variable of the runtime environment": script(exports={"HCCL_X": "1"}, runtime={"HCCL_X": "1"}),
    "segments without a sleeping engine": script(
        {f"{ROLLOUT}.free_cache_engine": False}, exports={"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}
    ),
    "segments without sleep mode": script(
        {f"{ROLLOUT}.engine_kwargs.vllm.enable_sleep_mode": False},
        exports={"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"},
    ),
    "CUDA by default": script({"trainer.device": "cuda"}, overrides=()),
    "a critic that is not trained": script({"critic.ulysses_sequence_parallel_size": 3}),
    "files that are here": script({"data.train_files": [__file__], "data.val_files": "hub/name"}),
}


@pytest.mark.parametrize("right", RIGHT_ONES.values(), ids=RIGHT_ONES.keys())
def test_nothing_is_found_in_a_right_script(right: Script) -> None:
    assert findings(right) == []


CUDA = ("trainer.device=cuda",)
SEGMENTS = {"PYTORCH_NPU_ALLOC_CONF": "max_split_size_mb:32,expandable_segments:True"}
WRONG_ONES: dict[str, tuple[Script, str, bool]] = {
    "CUDA by name": (script({"trainer.device": "cuda"}, overrides=CUDA), "device", True),
    "CUDA by name, added": (script({"trainer.device": "cuda"}, overrides=("+trainer.device=cuda",)), "device", True),
    "a key twice": (script(overrides=("a.b=1", "++a.b=2")), "shadowed", False),
    "a size without a value": (script(overrides=("trainer.nnodes=",)), "empty", True),
    "a size of quotes": (script(overrides=("data.train_batch_size=''",)), "empty", True),
    "no rollout engine": (script({f"{ROLLOUT}.name": "???"}), "rollout engine", True),
    "a mini batch above the batch": (script({f"{ACTOR}.ppo_mini_batch_size": 65}), "batches", True),
    "a batch that does not divide": (script({"data.train_batch_size": 66, f"{ROLLOUT}.n": 1}), "batches", True),
    "a batch that Megatron does not divide": (
        script({**MEGATRON, "data.train_batch_size": 65, f"{ROLLOUT}.n": 1}),
        "batches",
        True,
    ),
    "Megatron's sizes": (script({**MEGATRON, f"{ACTOR}.megatron.context_parallel_size": 3}), "parallel sizes", True),
    "a sequence dimension": (script({f"{ACTOR}.ulysses_sequence_parallel_size": 3}), "parallel sizes", True),
    "a critic's sequence dimension": (
        script({"algorithm.adv_estimator": "gae", "critic.ulysses_sequence_parallel_size": 3}),
        "parallel sizes",
        True,
    ),
    "a rollout": (script({f"{ROLLOUT}.tensor_model_parallel_size": 3}), "parallel sizes", True),
    "a rollout of its own": (script({"rollout.n_gpus_per_node": 2, "rollout.nnodes": 1}), "parallel sizes", True),
    "a variable that is not exported": (script(text="HCCL_CONNECT_TIMEOUT=900\n"), "exports", False),
    "a variable that a cluster does not get": (script(exports={"VLLM_USE_V1": "1"}, runtime={}), "exports", False),
    "segments beside a sleeping engine": (script(exports=SEGMENTS), "allocator", False),
    "fused kernels": (script({"actor_rollout_ref.model.use_fused_kernels": True}), "fused kernels", False),
    "a file that is not here": (script({"data.train_files": ["/none/a", "/none/b"]}), "files", False),
    "a key that MindSpeed has not": (
        script(
            MEGATRON,
            overrides=("actor_rollout_ref.actor.megatron.override_transformer_config.no_such_key=1",),
        ),
        "MindSpeed",
        True,
    ),
}


@pytest.mark.parametrize(("wrong", "rule", "refused"), WRONG_ONES.values(), ids=WRONG_ONES.keys())
def test_a_guard_finds_what_is_wrong_and_no_other_does(wrong: Script, rule: str, refused: bool) -> None:
    assert found(wrong) == [(rule, refused)]


def test_every_guard_has_a_wrong_script() -> None:
    firing = {guard for guard in GUARDS for wrong, _, _ in WRONG_ONES.values() if list(guard(wrong))}
    assert firing == set(GUARDS)


def test_refusals_come_first() -> None:
    both = script({f"{ROLLOUT}.tensor_model_parallel_size": 3}, overrides=("a.b=1", "a.b=2"))
    assert found(both) == [("parallel sizes", True), ("shadowed", False)]


@pytest.mark.parametrize(("wrong", "rule", "refused"), WRONG_ONES.values(), ids=WRONG_ONES.keys())
def test_a_finding_says_what_happens_and_what_to_do(wrong: Script, rule: str, refused: bool) -> None:
    (one,) = findings(wrong)
    assert isinstance(one, Finding)
    assert all(text and "\n" not in text for text in (one.subject, one.found, one.why, one.fix))
