"""A job's parallel layout: how many NPUs share each model, and whether that number divides the job's NPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from .keys import ACTOR, NODES, NPUS, REFERENCE, is_megatron, size
from .settings import Settings
from .trainer import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """The parallel sizes used to train a model."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    sequence: int = 1
    """The size of Ulysses sequence parallelism. The NPUs share sequences, but each NPU computes whole layers."""
    expert: int = 1
    expert_tensor: int = 1

    @property
    def sharing(self) -> int:
        """The number of NPUs that each sequence is divided among."""
        return self.tensor * self.context * self.sequence

    @property
    def multiple(self) -> int:
        """The required divisor of each packed sequence's length, in tokens. It is 1 without a pipeline. The unpadded
        lengths must be divisible, because verl pads the sequences only after Megatron has received the lengths of the
        tensors that pipeline stages exchange. Source: verl/models/mcore/util.py, `preprocess_packed_seqs`."""
        return self.tensor * (2 * self.context if self.context > 1 else 1) if self.pipeline > 1 else 1

    @property
    def replica(self) -> int:
        """The number of NPUs that share a replica of the model."""
        return self.pipeline * self.sharing

    @property
    def fewest(self) -> int:
        """The smallest number of NPUs that these parallel sizes require. Expert parallelism may span all dimensions
        except the pipeline."""
        experts = self.expert * self.expert_tensor if self.expert > 1 else 1
        return self.pipeline * math.lcm(self.sharing, experts)

    def divides(self, npus: int) -> bool:
        """Return whether `npus` is a multiple of the number of NPUs in a replica."""
        return npus % self.replica == 0

    def replicas(self, npus: int) -> int:
        """Return the number of data-parallel replicas of the model."""
        return max(npus // self.replica, 1)


@dataclass(frozen=True, slots=True)
class Indivisible:
    """Megatron's parallel sizes that do not divide the number of NPUs evenly."""

    key: str
    """The key of the section of settings that has the sizes."""
    sizes: str
    npus: int


def parallelism_of(settings: Settings, role: str = ACTOR) -> Parallelism:
    """Return the parallel sizes of a role."""
    if is_megatron(settings, role):
        return _megatron_sizes(settings, role)
    keys = (f"{role}.ulysses_sequence_parallel_size", f"{role}.fsdp_config.ulysses_sequence_parallel_size")
    return Parallelism(sequence=max(size(settings, key) for key in keys))


def _megatron_sizes(settings: Settings, role: str) -> Parallelism:
    def of(name: str) -> int:
        return size(settings, f"{role}.megatron.{name}_parallel_size")

    # Megatron uses the tensor-parallel size for the experts if theirs is null.
    experts = settings.whole(f"{role}.megatron.expert_tensor_parallel_size")
    return Parallelism(
        tensor=of("tensor_model"),
        pipeline=of("pipeline_model"),
        context=of("context"),
        expert=of("expert_model"),
        expert_tensor=experts or of("tensor_model"),
    )


def npus_of(trainer: Trainer, settings: Settings) -> int:
    """Return the number of NPUs that a trainer uses on all nodes, or 0 if neither torchrun's arguments nor the
    settings specify the number."""
    if trainer.ranks:
        return trainer.ranks * trainer.nodes if trainer.counted else 0
    return settings.whole(NPUS) * settings.whole(NODES, 1)


def indivisible(settings: Settings, npus: int) -> Iterator[Indivisible]:
    """Yield the parallel sizes of Megatron that do not evenly divide the trainer's NPUs."""
    for role in (ACTOR, REFERENCE) if npus > 0 and is_megatron(settings) else ():
        sizes = _megatron_sizes(settings, role)
        if not sizes.divides(npus):
            text = f"TP {sizes.tensor} x PP {sizes.pipeline} x CP {sizes.context} = {sizes.replica}"
            yield Indivisible(f"{role}.megatron", text, npus)
        elif npus % sizes.fewest:
            experts = sizes.expert_tensor * sizes.expert * sizes.pipeline
            text = f"expert TP {sizes.expert_tensor} x EP {sizes.expert} x PP {sizes.pipeline} = {experts}"
            yield Indivisible(f"{role}.megatron", text, npus)
