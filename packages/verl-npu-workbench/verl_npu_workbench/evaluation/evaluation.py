"""All rounds of a data set asked and graded, what was answered before left out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from . import record
from .dataset import Dataset, Prompt
from .endpoint import Answer, Endpoint, Model, Sampling
from .record import Entry
from .reward import Reward

Progress = Callable[[int, int, float], None]
"""Told how many answers are there, of how many, and their mean score."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be evaluated."""

    dataset: Dataset
    reward: Reward
    url: str
    model: str | None
    rounds: int
    sampling: Sampling
    output: Path
    concurrency: int
    """Answers that are drawn at the same time."""
    retries: int = 5
    timeout: float = 600.0
    """Seconds that one answer may take."""

    def settings(self, model: Model) -> dict[str, object]:
        """Return what an answer depends on. The address does not belong to it: a server may come up on another one."""
        return {
            "model": {"name": model.name, "root": model.root},
            "data": {"sha256": self.dataset.digest, "rows": len(self.dataset.prompts)},
            "reward": self.reward.identity,
            "rounds": self.rounds,
            "sampling": self.sampling.as_json(),
        }


def evaluate(plan: Plan, progress: Progress) -> list[Entry]:
    """Ask what has not been answered yet, and return all answers.

    Each is on disk before the next one is graded, so that a killed evaluation goes on where it ended.

    Raises:
        EvaluationError: the endpoint does not answer, the reward function fails, or the folder is another
            evaluation's.
    """
    return asyncio.run(_evaluate(plan, progress))


async def _evaluate(plan: Plan, progress: Progress) -> list[Entry]:
    async with Endpoint(plan.url, plan.retries, plan.timeout) as endpoint:
        model = await endpoint.model(plan.model)
        with record.opened(plan.output, plan.settings(model)) as stream:
            done = record.answers(plan.output)
            await _ask(plan, endpoint, model, done, stream, progress)
    return [done[key] for key in sorted(done)]


async def _ask(
    plan: Plan,
    endpoint: Endpoint,
    model: Model,
    done: dict[tuple[int, int], Entry],
    stream: TextIO,
    progress: Progress,
) -> None:
    total = len(plan.dataset.prompts) * plan.rounds
    missing = _missing(plan, done)
    lead = _Lead(done)
    progress(len(done), total, lead.mean)

    async def work() -> None:
        # The workers share the iterator: each takes what is next.
        for number, prompt in missing:
            answer = await endpoint.ask(model.name, prompt, plan.sampling.request(prompt.row, number, model))
            # Graded here, in the main thread: verl's graders of mathematics set an alarm, which only that may.
            entry = _entry(number, prompt, answer, *await _graded(plan.reward, prompt, answer))
            record.write(stream, entry)
            done[number, prompt.row] = entry
            lead.add(entry)
            progress(len(done), total, lead.mean)

    workers = [asyncio.create_task(work()) for _ in range(plan.concurrency)]
    try:
        await asyncio.gather(*workers)
    finally:
        for each in workers:
            each.cancel()
        # A worker that is cancelled between answers has nothing to say.
        await asyncio.gather(*workers, return_exceptions=True)


class _Lead:
    """The mean so far."""

    def __init__(self, done: Mapping[tuple[int, int], Entry]) -> None:
        self._sum = sum(each.score for each in done.values())
        self._count = len(done)

    @property
    def mean(self) -> float:
        return self._sum / self._count if self._count else 0.0

    def add(self, entry: Entry) -> None:
        self._sum += entry.score
        self._count += 1


async def _graded(reward: Reward, prompt: Prompt, answer: Answer) -> tuple[float, Mapping[str, object]]:
    grade = await reward.grade(prompt, answer.text)
    return grade.score, grade.more


def _entry(number: int, prompt: Prompt, answer: Answer, score: float, more: Mapping[str, object]) -> Entry:
    return Entry(
        row=prompt.row,
        round=number,
        data_source=prompt.data_source,
        score=score,
        more=more,
        finish_reason=answer.finish_reason,
        tokens=answer.tokens,
        answer=answer.text,
    )


def _missing(plan: Plan, done: Mapping[tuple[int, int], Entry]) -> Iterator[tuple[int, Prompt]]:
    # Made beforehand: what is answered from now on is not asked about.
    keys = set(done)
    for number in range(plan.rounds):
        for prompt in plan.dataset.prompts:
            if (number, prompt.row) not in keys:
                yield number, prompt
