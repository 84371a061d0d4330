"""Chooses the number of NPUs for a rehearsal, and divides them among the script's parallel dimensions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from verl_npu.errors import CommandError
from verl_npu.language import gettext as _

from ..jobs.keys import ROLLOUT, has_critic, is_separate, rollout_npus, size
from ..jobs.layout import Parallelism
from ..jobs.settings import Settings

MOST = 4
"""The most NPUs that a rehearsal uses by default. Each NPU needs a process of about 1.5 GiB with torch and a model."""
SHOWN = 2
"""The reduced size of a parallel dimension. Size 2 is enough to exercise all of the dimension's communication."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout(Parallelism):
    """The parallel sizes of the trainer and of the rollout, and the number of NPUs of each."""

    rollout_tensor: int = 1
    rollout_data: int = 1
    rollout_expert: int = 1
    npus: int = 1
    """The trainer's NPUs."""
    rollout_npus: int = 0
    """The number of the rollout's NPUs if they are separate from the trainer's. Otherwise 0."""

    @property
    def all_npus(self) -> int:
        return self.npus + self.rollout_npus

    @property
    def data(self) -> int:
        """The number of replicas of the trained model."""
        return self.replicas(self.npus)


def layout_of(settings: Settings, npus: int | None, torchrun: bool) -> Layout:
    """Return the layout of a rehearsal. If there are enough NPUs, each parallel dimension that the script uses gets
    size 2.

    `npus` is the number of NPUs that the user chose. If it is None, the layout uses the smallest number of NPUs that
    fits every dimension, up to `MOST`.

    Raises:
        CommandError: the script uses a trainer and a separate rollout, and the number of NPUs is too small for both.
    """
    separate = rollout_npus(settings) > 0 and not torchrun
    wanted = _wanted(settings)
    limit = npus if npus is not None else MOST
    if separate:
        if limit < 2:
            raise CommandError(
                subject="--npus",
                expected=_("at least 2, because the trainer and the rollout have separate NPUs in this script"),
                found=str(npus),
                fix=_("specify --npus 2 or more"),
            )
        rollout = min(wanted.rollout_tensor, max(limit // 2, 1))
        # In the v1 trainer, the trainer's NPUs have replicas of the servers too.
        shared = is_separate(settings)
        rollout = 1 if shared and limit % rollout else rollout
        trainer = _fitted(wanted, limit - rollout, exactly=npus is not None)
        fewest = max(trainer.fewest, rollout if shared else 1)
        trainer = replace(trainer, npus=max(fewest, limit - rollout if npus is not None else 1))
        return _with_rollout(trainer, rollout, separate=True)
    fitted = _fitted(wanted, limit, exactly=npus is not None)
    # At least two, because one NPU has no collectives.
    fewest = max(fitted.fewest, min(wanted.rollout_tensor, limit), min(SHOWN, limit))
    return _with_rollout(replace(fitted, npus=npus if npus is not None else fewest), 0, separate=False)


def _wanted(settings: Settings) -> Layout:
    def most(*endings: str) -> int:
        keys = [key for key in settings.ending(*endings) if _is_of_trainer(key, settings)]
        return min(max([settings.whole(key, 1) for key in keys], default=1), SHOWN)

    def of_rollout(name: str) -> int:
        return min(size(settings, f"{ROLLOUT}.{name}_parallel_size"), SHOWN)

    tensor = most("tensor_model_parallel_size")
    experts = [key for key in settings.ending("expert_tensor_parallel_size") if _is_of_trainer(key, settings)]
    return Layout(
        tensor=tensor,
        pipeline=most("pipeline_model_parallel_size"),
        context=most("context_parallel_size"),
        expert=most("expert_model_parallel_size", "expert_parallel_size"),
        # If it is null, Megatron uses the tensor dimension.
        expert_tensor=most("expert_tensor_parallel_size") if any(map(settings.whole, experts)) else tensor,
        sequence=most("ulysses_sequence_parallel_size", "ulysses_parallel_size"),
        rollout_tensor=of_rollout("tensor_model"),
        rollout_data=max(map(of_rollout, ("data", "dp_model"))),
        rollout_expert=of_rollout("expert"),
    )


def _is_of_trainer(key: str, settings: Settings) -> bool:
    """Return whether a key belongs to a section of the trainer that the script uses."""
    if ".rollout." in key or key.startswith(("reward", "distillation", "rollout.")):
        return False
    if key.startswith("critic.") and not has_critic(settings):
        return False
    return "override_transformer_config" not in key


def _fitted(layout: Layout, limit: int, exactly: bool) -> Layout:
    """Reduce dimensions until there are enough NPUs. Dimensions whose communication is also exercised by other
    dimensions are reduced first. With `exactly`, all NPUs are used, and the layout must divide their number."""
    for name in ("expert_tensor", "context", "sequence", "tensor", "expert", "pipeline"):
        if layout.fewest <= limit and not (exactly and limit % layout.fewest):
            break
        layout = replace(layout, **{name: 1})
    return layout


def _with_rollout(layout: Layout, rollout_npus: int, separate: bool) -> Layout:
    room = rollout_npus if separate else layout.npus
    tensor = layout.rollout_tensor if room % layout.rollout_tensor == 0 else 1
    data = layout.rollout_data if room // tensor % layout.rollout_data == 0 else 1
    # vLLM distributes the experts over all NPUs of a replica.
    expert = tensor * data if layout.rollout_expert > 1 else 1
    return replace(layout, rollout_tensor=tensor, rollout_data=data, rollout_expert=expert, rollout_npus=rollout_npus)
