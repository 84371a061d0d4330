"""The resource pool of a recipe's actor."""

from __future__ import annotations

from types import SimpleNamespace

from verl_npu.features.rollout.roles import give_the_recipes_actor_a_pool


def test_a_role_without_a_pool_gets_upstreams_one_and_others_keep_theirs() -> None:
    runner = SimpleNamespace(role_worker_mapping={"critic": 1}, mapping={"critic": "own_pool"})

    def recipes(runner: SimpleNamespace, config: object) -> str:
        runner.role_worker_mapping["actor"] = config
        return "added"

    assert give_the_recipes_actor_a_pool(recipes, runner, "worker") == "added"
    assert runner.mapping == {"critic": "own_pool", "actor": "global_pool"}
