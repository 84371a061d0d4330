from __future__ import annotations

import dataclasses
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
from verl_npu_workbench.plan.job import Picture, RankJob

from ..conftest import job_of

pytest.importorskip("torch")


def test_sequences_have_the_greatest_length_if_none_was_measured() -> None:
    from verl_npu_workbench.plan.rank.workers import batch

    found = batch(job_of(), training=True)
    assert found["attention_mask"].tolist() == [[1] * 7] * 2
    assert found["position_ids"][0].tolist() == list(range(7))
    assert found["responses"].shape == found["advantages"].shape == (2, 4)


def test_prompts_are_padded_on_the_left_and_answers_on_the_right() -> None:
    from verl_npu_workbench.plan.rank.workers import batch

    found = batch(job_of(lengths=((1, 2), (3, 4))), training=True)
    assert found["attention_mask"].tolist() == [[0, 0, 1, 1, 1, 0, 0], [1] * 7]
    assert found["position_ids"][0].tolist() == [0, 0, 0, 1, 2, 2, 2]
    assert found["response_mask"].tolist() == [[1, 1, 0, 0], [1] * 4]
    assert found["prompts"][0].tolist() == [0, 0, 5]


def test_a_picture_stands_before_the_answer_and_has_its_patches() -> None:
    from verl_npu_workbench.plan.rank.workers import batch

    found = batch(job_of(picture=Picture(token=9, width=6, patches=4, positions=4, tokens=2)), training=True)
    assert found["input_ids"][0].tolist() == [5, 9, 9, 5, 5, 5, 5]
    assert found["position_ids"].shape == (2, 4, 7)
    one = found["multi_modal_inputs"][1]
    assert one["pixel_values"].shape == (2 * 4, 6)
    assert one["image_grid_thw"].prod() == 2 * 4
    assert found["attention_mask"].sum(-1).tolist() == [7, 6], "sequences are not alike"
    alike = dataclasses.replace(job_of(lengths=[(3, 2)] * 4), picture=Picture(9, 6, 4, 4))
    assert batch(alike, training=True)["attention_mask"].sum(-1).tolist() == [5, 4, 5, 4], "neighbors are not alike"


def test_a_job_is_the_same_after_it_was_told_as_json() -> None:
    job = job_of(picture=Picture(token=9, width=6, patches=4, positions=4))
    assert RankJob.of_json(json.loads(json.dumps(dataclasses.asdict(job)))) == dataclasses.replace(
        job, lengths=[], scored_lengths=[]
    )


def test_phases_that_do_not_train_are_given_more() -> None:
    from verl_npu_workbench.plan.rank.workers import batch

    assert batch(job_of(), training=False)["attention_mask"].sum(-1).tolist() == [7] * 3
    measured = job_of(lengths=((1, 2),), scored_lengths=((1, 2), (3, 4)))
    assert batch(measured, training=False)["attention_mask"].sum(-1).tolist() == [3, 7]


R2, R3, OFF = ({"router_replay": {"mode": mode}} for mode in ("R2", "R3", "disabled"))


@pytest.mark.parametrize("replay", [R2, {**R2, "megatron": None}, {"router_replay": None, "megatron": R3}])
@pytest.mark.parametrize(("kind", "experts"), [("qwen3_moe", "num_experts"), ("mixtral", "num_local_experts")])
def test_a_job_that_replays_routes_is_given_the_experts_of_each_token_and_layer(
    tmp_path, replay, kind: str, experts: str
) -> None:
    pytest.importorskip("transformers")
    from verl_npu_workbench.plan.rank.workers import routed_experts

    sizes = {"num_hidden_layers": 3, experts: 8, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **sizes}))
    model = SimpleNamespace(path=str(tmp_path))
    found = routed_experts(SimpleNamespace(actor=replay, model=model), sequences=2, tokens=5)["routed_experts"]
    assert found.shape == (2, 5, 3, 2)
    assert found[1, :, 2].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [0, 1]], "different experts, and all of them"
    assert routed_experts(SimpleNamespace(actor={**OFF, "megatron": OFF}, model=model), 2, 5) == {}


@pytest.mark.parametrize(
    ("given", "handed"),
    [
        ({"rollout_weights": 5}, ["naive"]),
        ({"buckets": 4}, ["nccl through 4"]),
        ({"rollout_weights": 5, "buckets": 4}, ["nccl through 4", "naive"]),
    ],
)
def test_weights_are_handed_to_servers_through_their_buckets_and_to_an_engine_beside_the_trainer(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, int], handed: list[str]
) -> None:
    from verl_npu_workbench.plan.rank import workers

    class Actor:
        def __init__(self) -> None:
            self.handed: list[str] = []

        async def update_weights(self, mode: str) -> None:
            self.handed.append(f"{mode} through {self.checkpoint_engine}" if mode == "nccl" else mode)

    rank = object.__new__(workers.EngineWorkers)
    rank._actor, rank._job, rank._roles = Actor(), job_of(**given), SimpleNamespace(model={})
    monkeypatch.setattr(workers, "Buckets", lambda size: size)
    rank.hand_over()
    assert rank._actor.handed == handed
    assert not hasattr(rank._actor, "checkpoint_engine"), "the buffers are given back"


@pytest.mark.parametrize("others", [{}, {"model_config": "a model of its own"}], ids=["v0.8 on", "v0.7.1"])
def test_a_critics_model_and_engine_are_where_the_revision_has_them(
    others: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl_npu_workbench.plan.rank.workers import _critic_of

    engine, inside = SimpleNamespace(), SimpleNamespace()
    critic = SimpleNamespace(
        optim=None,
        checkpoint=None,
        model=SimpleNamespace(fsdp_config=inside),
        engine=engine,
        ppo_max_token_len_per_gpu=2,
        ppo_infer_max_token_len_per_gpu=3,
        **others,
    )
    modules: dict[str, dict[str, object]] = {
        "verl": {},
        "verl.utils": {},
        "verl.utils.config": {"omega_conf_to_dataclass": lambda section: critic},
        "verl.workers": {},
        "verl.workers.config": {"CriticConfig": object},
        "verl.workers.engine_workers": {"TrainingWorkerConfig": SimpleNamespace},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    found = _critic_of(SimpleNamespace(critic=None))  # type: ignore[arg-type]
    assert found.model_config is (critic.model if not others else critic.model_config)
    assert found.engine_config is (engine if not others else inside)
    assert found.engine_config.max_token_len_per_gpu == 2
