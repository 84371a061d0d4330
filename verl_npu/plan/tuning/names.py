"""The trainers of fine-tuning, by the names that they give to their settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...errors import PlanError
from ...rehearse.composition import Entry
from ...rehearse.settings import Settings
from ...rehearse.trainer import Trainer

__all__ = ["MAX_LENGTH", "MICRO", "SEQUENCES", "TOKENS", "Names", "module_of", "names_of"]

MAX_LENGTH = "data.max_length"
SEQUENCES = "data.train_batch_size"
MICRO = "data.micro_batch_size_per_gpu"
TOKENS = "data.max_token_len_per_gpu"


@dataclass(frozen=True, slots=True)
class Names:
    """What differs between the two."""

    model: str
    ulysses: str
    strategy: str
    packed: str
    contents: str
    """What a checkpoint has."""
    offload: tuple[str, ...]
    """What has FSDP1 keep the state on the host while it trains."""
    engines: bool
    """Whether the model is one of verl's engines."""


_FSDP = Names(
    model="model.partial_pretrain",
    ulysses="ulysses_sequence_parallel_size",
    strategy="model.strategy",
    packed="use_remove_padding",
    contents="trainer.checkpoint.save_contents",
    offload=("model.fsdp_config.cpu_offload", "model.fsdp_config.offload_params"),
    engines=False,
)
"""verl/trainer/fsdp_sft_trainer.py, up to v0.7."""
_ENGINES = Names(
    model="model.path",
    ulysses="engine.ulysses_sequence_parallel_size",
    strategy="engine.strategy",
    packed="model.use_remove_padding",
    contents="checkpoint.save_contents",
    # engine.offload_policy has norms reduced on the host, for which `run_sft` makes no process group.
    offload=(),
    engines=True,
)
"""verl/trainer/sft_trainer.py, from v0.6.1 on."""
_STRATEGIES = ("fsdp", "fsdp2")


def names_of(trainer: Trainer, settings: Settings) -> Names | None:
    """Return the names that a trainer of fine-tuning has; None if it is one of reinforcement learning.

    Raises:
        PlanError: it is neither, or what it does is not planned.
    """
    if "actor_rollout_ref.actor.strategy" in settings:
        return None
    names = next((each for each in (_FSDP, _ENGINES) if {each.model, each.strategy} <= set(settings.values)), None)
    if names is None:
        raise PlanError(
            subject=f"the trainer {trainer.module}",
            expected="one of verl's: of reinforcement learning, or fsdp_sft_trainer or sft_trainer",
            found="neither's settings",
            fix="plan the script of a GRPO, PPO or DAPO run, or of supervised fine-tuning",
        )
    if settings.text(names.strategy) not in _STRATEGIES:
        raise PlanError(
            subject=names.strategy,
            expected=" or ".join(_STRATEGIES) + " for fine-tuning: nothing else is planned yet",
            found=settings.text(names.strategy) or "none",
            fix="plan it with the engine of FSDP",
        )
    _check_counted(trainer)
    return names


def _check_counted(trainer: Trainer) -> None:
    """Check that torchrun starts it, on as many NPUs as its words say."""
    if not trainer.ranks:
        raise PlanError(
            subject=f"the trainer {trainer.module}",
            expected="torchrun to start it, whose --nproc_per_node and --nnodes are the NPUs",
            found="a program that Ray or Python starts",
            fix="plan a script with torchrun and the same settings",
        )
    if not trainer.counted:
        raise PlanError(
            subject=f"the trainer {trainer.module}",
            expected="numbers for torchrun's --nproc_per_node and --nnodes",
            found="one that torchrun would count on the machine itself",
            fix="say how many NPUs there will be: --nproc_per_node=8",
        )


def module_of(trainer: Trainer, entry: Entry, tree: Path) -> str:
    """Return the module of a trainer that may be named by its file."""
    if not trainer.module.endswith(".py"):
        return trainer.module
    if not entry.source.resolve().is_relative_to(tree.resolve()):
        raise PlanError(
            subject=f"the trainer {trainer.module}",
            expected=f"a file in {tree}",
            found=str(entry.source),
            fix="give its source tree: --verl PATH",
        )
    return ".".join(entry.source.resolve().relative_to(tree.resolve()).with_suffix("").parts)
