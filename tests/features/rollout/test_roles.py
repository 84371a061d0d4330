"""The resource pool of a recipe's actor."""

from __future__ import annotations

from types import SimpleNamespace

from verl_npu.features.rollout.patches import give_the_recipes_actor_a_pool


def test_a_role_without_a_pool_gets_upstreams_one_and_others_keep_theirs() -> None:
    runner = SimpleNamespace(role_worker_mapping={"critic": 1, "actor": 2}, mapping={"critic": "own_pool"})

    def upstreams(runner: SimpleNamespace, config: object) -> dict[str, str]:
        return dict(runner.mapping)

    made = give_the_recipes_actor_a_pool(upstreams, runner, object())
    assert made == {"critic": "own_pool", "actor": "global_pool"}
