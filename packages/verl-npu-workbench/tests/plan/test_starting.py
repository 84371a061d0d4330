from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from verl_npu_workbench.jobs.job import Entry, Job
from verl_npu_workbench.jobs.settings import Settings
from verl_npu_workbench.jobs.trainer import Trainer
from verl_npu_workbench.plan import starting
from verl_npu_workbench.plan.hardware import HARDWARE
from verl_npu_workbench.plan.job import Part, Started, StartJob
from verl_npu_workbench.plan.model import Model, published
from verl_npu_workbench.plan.planning import Request
from verl_npu_workbench.plan.starting import settings_named

from verl_npu.errors import PlanError
from verl_npu.findings import Finding, error

from .conftest import MODEL

OVERRIDES = (
    "algorithm.adv_estimator=gpro",
    "+actor_rollout_ref.rollout.dtype='bf'",
    "actor_rollout_ref.actor.ppo_mini_batch_size=3",
    "trainer.nnodes=1",
    "trainer.logger=console",
    "actor_rollout_ref.rollout.gpu_memory_utilization=60",
    "data.truncation=error",
)


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("Unknown advantage estimator simply: gpro", [OVERRIDES[0]]),
        ("argument --dtype: invalid choice: 'bf' (choose from 'auto')", [OVERRIDES[1]]),
        ("assert self.config.actor.ppo_mini_batch_size % ranks == 0", [OVERRIDES[2]]),
        ("ValidationError: 1 validation error for gpu_memory_utilization", [OVERRIDES[5]]),
        ("1 of 3", []),
    ],
)
def test_a_setting_is_named_by_its_value_or_its_key(said: str, named: list[str]) -> None:
    assert settings_named(OVERRIDES, said) == named


@pytest.fixture
def job(settings: Callable[..., Settings]) -> Callable[..., Job]:
    """Return a function that makes the job of a script with these settings."""

    def make(**others: object) -> Job:
        trainer = Trainer("verl.trainer.main_ppo", OVERRIDES, (), 0, Path(), {})
        entry = Entry(Path("main_ppo.py"), Path("/config"), "ppo_trainer")
        return Job(trainer, Path("tree"), entry, settings(**others), {}, {}, {})

    return make


@pytest.fixture
def asked(job: Callable[..., Job]) -> Callable[..., StartJob]:
    """Return a function that makes the request for a start of a script with these settings."""
    return lambda **others: starting._job(job(**others), MODEL)


def test_a_rank_has_all_of_a_mini_batch_that_is_its_own(asked: Callable[..., StartJob]) -> None:
    job = asked()
    assert (job.rank.world, job.rank.sequences, job.rank.scored) == (8, 32 * 4 // 8, 64 * 4 // 8)
    assert list(job.arguments) == ["--config-path=/config", "--config-name=ppo_trainer", *OVERRIDES]
    assert "data.train_batch_size" not in {*job.rank.changes, *job.overrides}


def test_the_last_stage_of_a_pipeline_computes_the_loss(asked: Callable[..., StartJob]) -> None:
    pipeline = {
        "actor_rollout_ref.actor.strategy": "megatron",
        "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size": 4,
    }
    assert asked(**pipeline).rank.rank == 6


@pytest.mark.parametrize(("experts", "has_experts"), [(1, False), (4, True)])
def test_experts_that_a_script_divides_are_in_the_model_that_stands_in(
    experts: int, has_experts: bool, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = PlanError(subject="the model 'mine'", expected="", found="", fix="")
    made: list[str] = []

    def model_of(path: str, given: None, folder: Path) -> Model:
        if not published(path):
            raise unknown
        made.append(path)
        return MODEL

    monkeypatch.setattr(starting, "model_of", model_of)
    megatron = {
        "actor_rollout_ref.actor.strategy": "megatron",
        "actor_rollout_ref.actor.megatron.expert_model_parallel_size": experts,
    }
    _model, notes = starting._model(job(**megatron), Request(Path(), HARDWARE["a2"], None, seconds=1.0))
    assert ("A3B" in made[0]) is has_experts
    assert notes == [f"the model 'mine'; {made[0]} replaces the model"]


@pytest.mark.parametrize(
    ("where", "stands_in", "refused"),
    [
        ("megatron-0.12.1/megatron/core/transformer/transformer_config.py:9", True, False),
        ("megatron-0.12.1/megatron/core/transformer/transformer_config.py:9", False, True),
        ("megatron-0.12.1/megatron/core/optimizer/__init__.py:9", True, True),
        ("verl/verl/workers/actor/dp_actor.py:9", True, True),
    ],
)
def test_a_model_that_stands_in_says_nothing_of_the_scripts_own(
    where: str, stands_in: bool, refused: bool, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Started(part=Part.WORKERS.value, error="ValueError: no such layer", where=f"/{where}", code="raise error")
    monkeypatch.setattr(starting, "_model", lambda job, request: (MODEL, ["another model"] * stands_in))
    monkeypatch.setattr(starting, "_ask", lambda *_: told)
    found = starting.started(job(), None, False).found
    assert [each.refused for each in found if "no such layer" in each.found] == [refused]


@pytest.mark.parametrize(
    ("passed", "error", "is_judged"),
    [([], "", False), ([], "ValueError: gpro", True), ([Part.PROGRAM.value], "", True)],
)
def test_a_start_that_passed_nothing_and_found_nothing_judges_nothing(
    passed: list[str], error: str, is_judged: bool, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Started(passed=passed, missing=["liger_kernel"], error=error, where="core.py:7")
    monkeypatch.setattr(starting, "_model", lambda job, request: (MODEL, []))
    monkeypatch.setattr(starting, "_ask", lambda *_: told)
    assert (starting.started(job(), None, False).not_judged == "") is is_judged


@pytest.mark.parametrize(("path", "replaced"), [("Skywork", True), (None, False)])
def test_a_reward_models_tokenizer_needs_no_file(
    path: str | None, replaced: bool, asked: Callable[..., StartJob]
) -> None:
    key = "reward.reward_model.model_path"
    assert (key in asked(**{key: path}).overrides) is replaced


def test_there_are_rows_enough_for_a_batch(asked: Callable[..., StartJob]) -> None:
    assert asked(**{"data.train_batch_size": 1024}).rows == 1024


def test_wrong_numbers_do_not_keep_upstream_from_refusing_them(asked: Callable[..., StartJob]) -> None:
    job = asked(**{"trainer.n_gpus_per_node": 0, "data.train_batch_size": "many"})
    assert (job.rank.world, job.rank.scored) == (1, 4)


def test_a_refusal_has_upstreams_words_its_line_and_the_setting() -> None:
    told = Started(
        part=Part.BATCH.value, error="ValueError: Unknown gpro", where="core.py:7", code="    raise ValueError(name)"
    )
    trainer = Trainer("verl.trainer.main_ppo", OVERRIDES, (), 0, Path(), {})
    finding = starting._refusal(told, trainer)
    assert (finding.refused, finding.subject) == (True, OVERRIDES[0])
    assert finding.found == "ValueError: Unknown gpro"
    assert "core.py:7: `raise ValueError(name)`" in finding.why


def test_an_answer_with_a_part_that_is_unknown_is_none() -> None:
    assert Started.of_json({"passed": [Part.PROGRAM.value]}).passed == [Part.PROGRAM.value]
    with pytest.raises(ValueError, match="an unknown part"):
        Started.of_json({"passed": ["somewhere"]})


def test_a_setting_that_the_start_refuses_is_refused_once() -> None:
    def refused(code: str, subject: str) -> Finding:
        return error(code, "gpro", subject=subject, why="upstream ends the job", fix="change the setting")

    start = refused(starting.CODE, "algorithm.adv_estimator=gpro, +trainer.nnodes=1")
    repeat, other = refused("choices", "algorithm.adv_estimator"), refused("choices", "data.sampler")
    ours = refused("placeholders", "algorithm.adv_estimator")
    assert starting.without_repeats([repeat, other, ours], [start]) == [other, ours]
    assert starting.without_repeats([repeat], []) == [repeat]
