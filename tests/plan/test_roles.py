"""Which roles a trainer has, from its settings."""

from __future__ import annotations

import pytest

from verl_npu.plan.roles import has_critic, has_reference


@pytest.mark.parametrize(
    ("others", "there"),
    [
        ({}, False),
        ({"algorithm__adv_estimator": "gae"}, True),
        ({"critic__enable": True}, True),
        ({"algorithm__adv_estimator": "gae", "critic__enable": False}, False),
    ],
)
def test_a_critic_is_there_for_gae_unless_the_script_says_otherwise(settings, others, there: bool) -> None:
    assert has_critic(settings(**others)) is there


@pytest.mark.parametrize(
    ("others", "there"),
    [
        ({}, False),
        ({"actor_rollout_ref__actor__use_kl_loss": True}, True),
        ({"algorithm__use_kl_in_reward": True}, True),
        ({"algorithm__use_kl_in_reward": True, "actor_rollout_ref__model__lora_rank": 8}, False),
    ],
)
def test_a_reference_is_kept_for_a_divergence_unless_adapters_can_be_left_out(settings, others, there: bool) -> None:
    assert has_reference(settings(**others)) is there
