from __future__ import annotations

from types import SimpleNamespace

import pytest
from verl_npu_workbench.jobs.settings import Settings
from verl_npu_workbench.kernels.verdict import NOT_SHOWN
from verl_npu_workbench.rehearse.rehearsal import _follows, curves, engine, page
from verl_npu_workbench.rehearse.rules import Change

INTERPOLATIONS = {
    "ref.megatron.override": "${oc.select:actor.megatron.override,{}}",
    "rollout.length": "${data.length}",
}
ACTORS = Change("actor.megatron.override.stages", 8, None, "pipeline stages")
DATAS = Change("data.length", 2048, 16, "lengths")


@pytest.mark.parametrize(
    ("key", "after", "follows"),
    [
        ("rollout.length", 16, True),
        ("rollout.length", 32, False),
        ("ref.megatron.override.stages", None, True),
        ("ref.megatron.override.stages", 2, False),
        ("ref.megatron.override.other", None, False),
        ("critic.megatron.override.stages", None, False),
    ],
)
def test_what_follows_a_changed_key_by_interpolation_is_not_written(key: str, after: object, follows: bool) -> None:
    change = Change(key, 1, after, "a rule")
    assert _follows(change, [ACTORS, DATAS, change], SimpleNamespace(interpolations=INTERPOLATIONS)) is follows  # type: ignore[arg-type]


def test_a_change_is_its_keys_override() -> None:
    assert Change("a.b", 1, "x y", "rule").override() == "++a.b='x y'"


@pytest.mark.parametrize(
    ("changes", "ran_with"),
    [((), "vllm"), ((Change("actor_rollout_ref.rollout.name", "vllm", "hf", "rollout engine"),), "hf")],
    ids=["the script's own", "the one in its place"],
)
def test_the_engine_is_the_one_that_the_rehearsal_ran_with(changes: tuple[Change, ...], ran_with: str) -> None:
    job = SimpleNamespace(settings=Settings({"actor_rollout_ref.rollout.name": "vllm"}))
    assert engine(SimpleNamespace(job=job, changes=changes)) == ran_with  # type: ignore[arg-type]


def test_rewards_are_kept_by_step_and_validation_before_the_first_is_none_of_them() -> None:
    steps = {2: {"critic/rewards/mean": 0.5}, 0: {"val": 1.0}, 1: {"critic/rewards/mean": 0.25, "actor/pg_loss": 3.0}}
    assert curves(SimpleNamespace(steps=steps)) == {"critic/rewards/mean": [0.25, 0.5]}  # type: ignore[arg-type]


def test_the_page_names_kernels_that_do_not_compile_and_what_compiling_does_not_show() -> None:
    kernels = {"kernels": [{"kernel": "some:large", "verdict": "overflows"}], "counts": {"compiles": 2}}
    of_all = {"script": "run.sh", "verdict": "trained", "steps": 2, "seconds": 1.0, "kernels": kernels}
    assert "| some:large overflows; 2 compile |" in page([of_all])
    assert all(each in page([of_all]) for each in NOT_SHOWN)
    assert not any(each in page([{**of_all, "kernels": None}]) for each in NOT_SHOWN)
