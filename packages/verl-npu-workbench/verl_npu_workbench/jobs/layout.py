"""A job's parallel layout: among how many NPUs its models are divided, and whether those can be divided so."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass

from verl_npu.language import gettext as _

from .keys import ACTOR, NODES, NPUS, REFERENCE, ROLLOUT, has_critic, is_megatron, rollout_npus, size
from .settings import Settings
from .trainer import Trainer


class Framework(enum.Enum):
    """What divides NPUs, and ends the job if it cannot."""

    MEGATRON = "Megatron"
    FSDP = "FSDP"
    ROLLOUT = _("the rollout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """The parallel sizes of a model that is trained."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    sequence: int = 1
    """Of Ulysses: the NPUs share sequences, and each has whole layers."""
    expert: int = 1
    expert_tensor: int = 1

    @property
    def sharing(self) -> int:
        """NPUs that share a sequence."""
        return self.tensor * self.context * self.sequence

    @property
    def replica(self) -> int:
        """NPUs among which a replica of the model is divided."""
        return self.pipeline * self.sharing

    @property
    def fewest(self) -> int:
        """The fewest NPUs with these sizes: experts lie across the others, but for the pipeline."""
        experts = self.expert * self.expert_tensor if self.expert > 1 else 1
        return self.pipeline * math.lcm(self.sharing, experts)

    def divides(self, npus: int) -> bool:
        """Return whether so many NPUs are whole replicas."""
        return npus % self.replica == 0

    def replicas(self, npus: int) -> int:
        """Return how many replicas of the model there are, each with data of its own."""
        return max(npus // self.replica, 1)


@dataclass(frozen=True, slots=True)
class Indivisible:
    """Sizes that do not divide the NPUs."""

    by: Framework
    key: str
    """The setting, or the section with the settings."""
    sizes: str
    npus: int


def parallelism_of(settings: Settings, role: str = ACTOR) -> Parallelism:
    """Return the parallel sizes of a role."""
    if is_megatron(settings, role):
        return _of_megatron(settings, role)
    keys = (f"{role}.ulysses_sequence_parallel_size", f"{role}.fsdp_config.ulysses_sequence_parallel_size")
    return Parallelism(sequence=max(size(settings, key) for key in keys))


def _of_megatron(settings: Settings, role: str) -> Parallelism:
    def of(name: str) -> int:
        return size(settings, f"{role}.megatron.{name}_parallel_size")

    # Megatron takes the tensor dimension for that of the experts if it is null.
    experts = settings.whole(f"{role}.megatron.expert_tensor_parallel_size")
    return Parallelism(
        tensor=of("tensor_model"),
        pipeline=of("pipeline_model"),
        context=of("context"),
        expert=of("expert_model"),
        expert_tensor=experts or of("tensor_model"),
    )


def npus_of(trainer: Trainer, settings: Settings) -> int:
    """Return all NPUs of a trainer; 0 if neither torchrun's words nor the settings say."""
    if trainer.ranks:
        return trainer.ranks * trainer.nodes if trainer.counted else 0
    return settings.whole(NPUS) * settings.whole(NODES, 1)


def indivisible(settings: Settings, npus: int) -> Iterator[Indivisible]:
    """Yield the sizes that do not divide the trainer's NPUs, or the rollout's own."""
    if npus <= 0:
        return
    yield from _of_trainer(settings, npus)
    npus = rollout_npus(settings) or npus
    key = f"{ROLLOUT}.tensor_model_parallel_size"
    if npus % size(settings, key):
        yield Indivisible(Framework.ROLLOUT, key, str(size(settings, key)), npus)


def _of_trainer(settings: Settings, npus: int) -> Iterator[Indivisible]:
    if is_megatron(settings):
        for role in (ACTOR, REFERENCE):
            sizes = _of_megatron(settings, role)
            if not sizes.divides(npus):
                text = f"TP {sizes.tensor} x PP {sizes.pipeline} x CP {sizes.context} = {sizes.replica}"
                yield Indivisible(Framework.MEGATRON, f"{role}.megatron", text, npus)
        return
    for key in settings.ending("ulysses_sequence_parallel_size"):
        if key.startswith(("critic.", "reward")) and not has_critic(settings):
            continue
        if npus % size(settings, key):
            yield Indivisible(Framework.FSDP, key, str(size(settings, key)), npus)
