from __future__ import annotations

import pytest
from verl_npu_workbench.jobs.settings import Settings
from verl_npu_workbench.rehearse.layout import Layout, layout_of

from verl_npu.errors import CommandError

ACTOR, REF, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"
MEGATRON = f"{ACTOR}.megatron"


def sizes(**given: object) -> Settings:
    """Return settings, given by short names."""
    keys = {
        "tp": f"{MEGATRON}.tensor_model_parallel_size",
        "pp": f"{MEGATRON}.pipeline_model_parallel_size",
        "cp": f"{MEGATRON}.context_parallel_size",
        "ep": f"{MEGATRON}.expert_model_parallel_size",
        "etp": f"{MEGATRON}.expert_tensor_parallel_size",
        "sp": f"{ACTOR}.ulysses_sequence_parallel_size",
        "rtp": f"{ROLLOUT}.tensor_model_parallel_size",
        "rdp": f"{ROLLOUT}.data_parallel_size",
        "rdmp": f"{ROLLOUT}.dp_model_parallel_size",
        "rep": f"{ROLLOUT}.expert_parallel_size",
        "own": "rollout.n_gpus_per_node",
        "v1": "trainer.use_v1",
        "mode": "trainer.v1.trainer_mode",
        "servers": f"{ROLLOUT}.n_gpus_per_node",
    }
    return Settings({"algorithm.adv_estimator": "grpo", **{keys[name]: value for name, value in given.items()}})


def short(layout: Layout) -> dict[str, int]:
    """Return the NPUs and the sizes that are not 1."""
    names = {
        "tp": layout.tensor,
        "pp": layout.pipeline,
        "cp": layout.context,
        "ep": layout.expert,
        "sp": layout.sequence,
        "rtp": layout.rollout_tensor,
        "rdp": layout.rollout_data,
        "rep": layout.rollout_expert,
        "dp": layout.data,
    }
    own = {"own": layout.rollout_npus} if layout.rollout_npus else {}
    return {name: size for name, size in names.items() if size > 1} | own | {"npus": layout.all_npus}


SEPARATE = {"v1": True, "mode": "separate_async", "servers": 8}
TABLE: list[tuple[dict[str, object], int | None, dict[str, int]]] = [
    ({}, None, {"dp": 2, "npus": 2}),
    ({}, 1, {"npus": 1}),
    ({}, 8, {"dp": 8, "npus": 8}),
    ({"sp": 8, "rtp": 4}, None, {"sp": 2, "rtp": 2, "npus": 2}),
    ({"sp": 8}, 4, {"sp": 2, "dp": 2, "npus": 4}),
    ({"sp": 8, "rtp": 4}, 1, {"npus": 1}),
    ({"rtp": 4, "rdp": 8}, None, {"rtp": 2, "dp": 2, "npus": 2}),
    ({"rtp": 4, "rdp": 8}, 4, {"rtp": 2, "rdp": 2, "dp": 4, "npus": 4}),
    ({"rtp": 4, "rdmp": 8}, 4, {"rtp": 2, "rdp": 2, "dp": 4, "npus": 4}),
    ({"rtp": 1, "rdp": 8, "rep": 8}, None, {"rdp": 2, "rep": 2, "dp": 2, "npus": 2}),
    ({"tp": 4}, None, {"tp": 2, "npus": 2}),
    ({"tp": 4, "pp": 8}, None, {"tp": 2, "pp": 2, "npus": 4}),
    ({"tp": 4, "pp": 8}, 2, {"pp": 2, "npus": 2}),
    ({"tp": 4, "pp": 8, "rtp": 4}, 3, {"dp": 3, "npus": 3}),
    ({"tp": 4, "pp": 8}, 6, {"pp": 2, "dp": 3, "npus": 6}),
    ({"tp": 4, "pp": 8, "cp": 2}, None, {"tp": 2, "pp": 2, "npus": 4}),
    ({"tp": 4, "pp": 8, "cp": 2}, 8, {"tp": 2, "pp": 2, "cp": 2, "npus": 8}),
    ({"tp": 4, "pp": 8}, 8, {"tp": 2, "pp": 2, "dp": 2, "npus": 8}),
    ({"pp": 8, "ep": 8, "etp": 1, "tp": 4}, None, {"tp": 2, "pp": 2, "ep": 2, "npus": 4}),
    ({"pp": 8, "ep": 8, "etp": 1, "tp": 4}, 2, {"pp": 2, "npus": 2}),
    ({"pp": 8, "ep": 8, "etp": None, "tp": 4}, 8, {"tp": 2, "pp": 2, "ep": 2, "dp": 2, "npus": 8}),
    ({"pp": 8, "ep": 8, "etp": None, "tp": 4}, 4, {"tp": 2, "pp": 2, "ep": 2, "npus": 4}),
    ({"ep": 8}, None, {"ep": 2, "dp": 2, "npus": 2}),
    ({"own": 8, "rtp": 4}, None, {"own": 2, "rtp": 2, "npus": 3}),
    ({"own": 8, "rtp": 1}, None, {"own": 1, "npus": 2}),
    ({"own": 8, "rtp": 4, "tp": 4}, None, {"own": 2, "rtp": 2, "tp": 2, "npus": 4}),
    ({"own": 8, "rtp": 4}, 2, {"own": 1, "npus": 2}),
    ({"own": 8, "rtp": 4}, 8, {"own": 2, "rtp": 2, "dp": 6, "npus": 8}),
    ({**SEPARATE, "rtp": 1}, None, {"own": 1, "npus": 2}),
    # The replicas on the trainer's NPUs are as wide as the servers.
    ({**SEPARATE, "rtp": 4}, None, {"own": 2, "rtp": 2, "dp": 2, "npus": 4}),
    ({**SEPARATE, "rtp": 4}, 2, {"own": 1, "npus": 2}),
    ({**SEPARATE, "rtp": 4}, 5, {"own": 1, "dp": 4, "npus": 5}),
    ({**SEPARATE, "rtp": 4, "tp": 2, "pp": 2}, 8, {"own": 2, "rtp": 2, "pp": 2, "dp": 3, "npus": 8}),
    ({**SEPARATE, "mode": "colocate_async", "rtp": 4}, None, {"rtp": 2, "dp": 2, "npus": 2}),
]


@pytest.mark.parametrize(("given", "npus", "expected"), TABLE, ids=[f"{given} on {npus}" for given, npus, _ in TABLE])
def test_layouts(given: dict[str, object], npus: int | None, expected: dict[str, int]) -> None:
    assert short(layout_of(sizes(**given), npus, torchrun=False)) == expected


@pytest.mark.parametrize(("etp", "tensor"), [(None, 2), (1, 1), (4, 2)])
def test_experts_are_split_as_the_dense_layers_are_if_the_script_does_not_say(etp: int | None, tensor: int) -> None:
    assert layout_of(sizes(tp=4, ep=8, etp=etp), 8, torchrun=False).expert_tensor == tensor


def test_a_rollout_of_its_own_wants_two_npus() -> None:
    with pytest.raises(CommandError, match="--npus: expected at least 2"):
        layout_of(sizes(own=8), 1, torchrun=False)


def test_a_rollout_of_its_own_means_nothing_to_torchrun() -> None:
    assert short(layout_of(sizes(own=8), None, torchrun=True)) == {"dp": 2, "npus": 2}


def test_the_largest_role_decides() -> None:
    key = f"{REF}.megatron.tensor_model_parallel_size"
    assert layout_of(Settings({**sizes(tp=1).values, key: 4}), None, torchrun=False).tensor == 2


OTHERS = {
    "a critic that is not trained": ("critic.megatron.tensor_model_parallel_size", "grpo", 1),
    "a critic that is trained": ("critic.megatron.tensor_model_parallel_size", "gae", 2),
    "a reward model": ("reward_model.megatron.tensor_model_parallel_size", "gae", 1),
    "MindSpeed's overrides": (f"{MEGATRON}.override_transformer_config.tensor_model_parallel_size", "grpo", 1),
}


@pytest.mark.parametrize(("key", "estimator", "tensor"), OTHERS.values(), ids=OTHERS.keys())
def test_only_what_is_trained_counts(key: str, estimator: str, tensor: int) -> None:
    settings = Settings({"algorithm.adv_estimator": estimator, key: 8})
    assert layout_of(settings, None, torchrun=False).tensor == tensor
