"""The comparison within a job: its steps, and the jobs in which it is not made."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")
from verl_npu_workbench.layers import job

ENGINE = SimpleNamespace(engine=None)


def worker(
    rollout: object = ENGINE, name: str = "virtual", kind: str = "qwen2", lora: bool = False, ulysses: int = 1
) -> Any:
    return SimpleNamespace(
        rollout=rollout,
        config=SimpleNamespace(
            rollout=SimpleNamespace(name=name, mode="sync"), actor={"ulysses_sequence_parallel_size": ulysses}
        ),
        actor_model_config=SimpleNamespace(model_type=kind),
        _is_lora=lora,
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (worker(), ""),
        (worker(name="vllm"), "the engine vllm in mode sync cannot be recorded within a job"),
        (worker(rollout=object()), "the engine virtual in mode sync cannot be recorded within a job"),
        (worker(kind="gemma"), "expected a model of type qwen2, qwen3, qwen3_moe, deepseek_v3; found gemma"),
        (worker(lora=True), "the trainer has a LoRA adapter"),
        (worker(ulysses=2), "the trainer uses Ulysses sequence parallelism"),
    ],
)
def test_a_line_says_why_layers_are_not_compared(given: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(job, "report", lines.append)
    monkeypatch.setattr(job.dist, "get_rank", lambda: 0)
    assert job._said_why_not(given) == bool(said)
    assert lines == ([f"layers are not compared: {said}"] if said else [])


def test_the_step_follows_from_the_updates() -> None:
    assert job._step_of(SimpleNamespace(actor_lr_scheduler=SimpleNamespace(last_epoch=19))) == 20


def test_a_comparison_that_fails_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(job, "warn", lines.append)
    assert job._tried(3, int, "x") is None
    assert lines[0].startswith("layers of step 3 are not compared: ValueError: invalid literal")


def test_a_rank_that_fails_ends_the_comparison_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = SimpleNamespace()
    monkeypatch.setattr(job, "warn", lambda line: None)
    monkeypatch.setattr(job.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(job, "_record_trainer", lambda *given: {}["nothing"])
    told: list[object] = []

    def gathered(mine: object) -> list[object]:
        told.append(mine)
        return [mine, mine]

    monkeypatch.setattr(job, "_gathered", gathered)
    monkeypatch.setattr(job, "_host_model", lambda *given: pytest.fail("the ranks would wait for each other here"))
    assert job._compare(worker(), 1, SimpleNamespace(batch=batch)) is None  # type: ignore[arg-type]
    assert told == [batch, None]


def test_the_share_of_a_step_is_said_once_a_whole_step_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    given, clock = worker(rollout=SimpleNamespace(engine=SimpleNamespace(answered=[]))), [0.0]
    given.actor_lr_scheduler = SimpleNamespace(last_epoch=0)

    def compared(*given: object) -> tuple[None, list[str]]:
        clock[0] += 6
        return None, ["as expected"]

    async def original(worker: object) -> None:
        """Return to training."""

    monkeypatch.setattr(job, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(job, "report", lines.append)
    monkeypatch.setattr(job, "_gathered", lambda mine: [mine])
    monkeypatch.setattr(job, "_record_engine", lambda *given: None)
    monkeypatch.setattr(job, "_compare", compared)

    def generate(step: int, seconds: float) -> None:
        clock[0] += seconds
        given.actor_lr_scheduler.last_epoch = step - 1
        asyncio.run(job.compare_before_training(original, given, 2))

    generate(1, 0)
    given.rollout.engine.answered = [1]
    # The second generation of step 3 is a validation.
    for step, seconds in ((1, 40), (2, 100), (3, 100), (3, 150), (4, 50)):
        generate(step, seconds)
    assert [line.partition("Compared in ")[2] for line in lines] == [
        "6.0 s",
        "6.0 s, 6% of a step; at N=2, 3.0% of all steps",
        "6.0 s, 3% of a step; at N=2, 1.5% of all steps",
    ]
