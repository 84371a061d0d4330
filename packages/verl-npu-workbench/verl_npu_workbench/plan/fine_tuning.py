"""Plans fine-tuning: the names of the settings of verl's two fine-tuning trainers, the division of the data among
ranks, and the settings of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_npu.errors import PlanError
from verl_npu.language import gettext as _

from ..jobs.job import Job
from ..jobs.keys import BATCH, MAX_LENGTH, STRATEGY, size
from ..jobs.layout import Parallelism
from ..jobs.settings import Settings
from ..jobs.trainer import Trainer
from .job import Phase
from .lengths import Length
from .share import MicroBatch, Share, divided, positive, replicas_of

MICRO_BATCH = "data.micro_batch_size_per_gpu"
_TOKENS = "data.max_token_len_per_gpu"
STEPS = 2
"""The number of batches to train on, and to validate with. Only the second step runs with the optimizer's state in
memory."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one trainer's settings. verl has two fine-tuning trainers."""

    model: str
    ulysses: str
    strategy: str
    packed: str
    contents: str
    """The setting for the contents of a checkpoint."""
    offload: tuple[str, ...]
    """The settings that make FSDP1 keep the model's state on the host during training."""
    engines: bool
    """Whether the trainer is built on verl's engines."""


_FSDP = Names(
    model="model.partial_pretrain",
    ulysses="ulysses_sequence_parallel_size",
    strategy="model.strategy",
    packed="use_remove_padding",
    contents="trainer.checkpoint.save_contents",
    offload=("model.fsdp_config.cpu_offload", "model.fsdp_config.offload_params"),
    engines=False,
)
"""The names in verl/trainer/fsdp_sft_trainer.py, which exists up to v0.7."""
_ENGINES = Names(
    model="model.path",
    ulysses="engine.ulysses_sequence_parallel_size",
    strategy="engine.strategy",
    packed="model.use_remove_padding",
    contents="checkpoint.save_contents",
    # engine.offload_policy reduces norms on the host, for which `run_sft` makes no process group.
    offload=(),
    engines=True,
)
"""The names in verl/trainer/sft_trainer.py, which exists from v0.6.1 on."""
_STRATEGIES = ("fsdp", "fsdp2")


def names_of(trainer: Trainer, settings: Settings) -> Names | None:
    """Return the names of a fine-tuning trainer's settings, or None if the trainer is for reinforcement learning.

    Raises:
        PlanError: the trainer is for neither fine-tuning nor reinforcement learning, or plans do not support its
            strategy or its launcher.
    """
    if STRATEGY in settings:
        return None
    names = next((each for each in (_FSDP, _ENGINES) if {each.model, each.strategy} <= set(settings.values)), None)
    if names is None:
        raise PlanError(
            subject=_("the trainer {module}").format(module=trainer.module),
            found=_("its settings belong to none of verl's trainers for GRPO, PPO, DAPO, and supervised fine-tuning"),
            fix=_("choose a script of one of these trainers"),
        )
    if settings.text(names.strategy) not in _STRATEGIES:
        raise PlanError(
            subject=names.strategy,
            expected=_(
                "{strategies}, because plans of supervised fine-tuning do not support other strategies yet"
            ).format(strategies=_(" or ").join(_STRATEGIES)),
            found=settings.text(names.strategy) or _("none"),
            fix=_("in the script that you pass to `verl-npu plan`, set the strategy to FSDP"),
        )
    _check_counted(trainer)
    return names


def _check_counted(trainer: Trainer) -> None:
    """Raise PlanError unless torchrun starts the trainer and its options give the number of NPUs."""
    if not trainer.ranks:
        raise PlanError(
            subject=_("the trainer {module}").format(module=trainer.module),
            expected=_(
                "a script that starts the trainer with torchrun, so that --nproc_per_node and --nnodes give "
                "the number of NPUs"
            ),
            found=_("a script that starts the trainer with Ray or Python"),
            fix=_("choose a script that uses torchrun with the same settings"),
        )
    if not trainer.counted:
        raise PlanError(
            subject=_("the trainer {module}").format(module=trainer.module),
            expected=_("numbers for torchrun's --nproc_per_node and --nnodes"),
            found=_("a value that makes torchrun count the NPUs of the machine"),
            fix=_("give the number of NPUs, for example --nproc_per_node=8"),
        )


def module_of(job: Job) -> str:
    """Return the trainer's module name, even if the script starts the trainer by file path."""
    module, source, tree = job.trainer.module, job.entry.source.resolve(), job.tree.resolve()
    if not module.endswith(".py"):
        return module
    if not source.is_relative_to(tree):
        raise PlanError(
            subject=_("the trainer {module}").format(module=module),
            expected=_("a file in {tree}").format(tree=job.tree),
            found=str(job.entry.source),
            fix=_("use --verl PATH to specify the source tree that contains the trainer"),
        )
    return ".".join(source.relative_to(tree).with_suffix("").parts)


def tuning_share(
    names: Names,
    trainer: Trainer,
    settings: Settings,
    response: int | None = None,
    prompt: int | None = None,
    measured: Sequence[Length] = (),
    bounded: bool = False,
) -> Share:
    """Divide the work of a fine-tuning step among the ranks. A sequence is a prompt with its response; only its total
    length counts.

    Raises:
        PlanError: a size is missing, or is not divisible by another size as the trainer requires.
    """
    world = trainer.ranks * trainer.nodes
    sizes = Parallelism(sequence=size(settings, names.ulysses))
    data = replicas_of(world, sizes, _("--nnodes x --nproc_per_node of torchrun"))
    batches = _micro_batches(names, settings, sizes.sequence, bounded)
    most = positive(settings, MAX_LENGTH)
    step = _rank_batch(names, settings, data, batches[0])
    shared, packed = sizes.sequence > 1, settings.truth(names.packed)
    notes = []
    if shared and names.engines and not packed:
        notes.append(
            _(
                "{packed} is off, and verl splits only packed sequences among NPUs: each NPU computes whole sequences"
            ).format(packed=names.packed)
        )
    # The trainer without engines pads unless ranks share a sequence.
    pads = not (names.engines or (shared and packed))
    return divided(
        world=world,
        local=trainer.ranks,
        sizes=sizes,
        most=(0, most),
        batches=batches,
        step=step,
        mini=step,
        padded=_("every sequence is padded to data.max_length") if pads else "",
        response=response,
        prompt=prompt,
        measured=measured,
        notes=notes,
    )


def _micro_batches(names: Names, settings: Settings, sequence_parallel: int, bounded: bool) -> tuple[MicroBatch, ...]:
    if names.engines and settings.truth("data.use_dynamic_bsz"):
        key, dynamic = _TOKENS, True
    else:
        key, dynamic = MICRO_BATCH, False
    size = positive(settings, key)
    return tuple(
        MicroBatch(phase, key, dynamic, size, sequence_parallel, bounded=bounded and dynamic)
        for phase in (Phase.TRAINING, Phase.VALIDATION)
    )


def _rank_batch(names: Names, settings: Settings, data: int, batch: MicroBatch) -> int:
    """Return the number of sequences that each rank processes in a step."""
    together = positive(settings, BATCH)
    # fsdp_sft_trainer.py, `_normalize_config_bsz`; with engines, the last micro batch may be smaller.
    part = data if names.engines else data * batch.size
    if together % part:
        wanted = _("{data} data-parallel ranks").format(data=data) + (
            "" if names.engines else f" x {batch.key}={batch.size}"
        )
        raise PlanError(
            subject=f"{BATCH}={together}",
            expected=_("a multiple of {part} ({wanted})").format(part=part, wanted=wanted),
            found=_("a batch size that leaves a remainder of {remainder} when divided by this number").format(
                remainder=together % part
            ),
            fix=_("change the batch size, the micro-batch size, or the number of NPUs"),
        )
    return together // data


def tuning_changes(names: Names, settings: Settings, model: Path) -> dict[str, object]:
    """Return the settings that make one rank take two steps and load no weights or data.

    `model` is the folder of a model without weights.
    """
    changes: dict[str, object] = {
        names.model: str(model),
        names.contents: ["model", "optimizer", "extra"],
        "trainer.device": "npu",
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": STEPS,
        # The trainer validates and saves after the last step anyway.
        "trainer.test_freq": -1,
        "trainer.save_freq": -1,
        "trainer.resume_mode": "disable",
        "trainer.default_hdfs_dir": None,
        "trainer.logger": ["console"],
    }
    changes |= dict.fromkeys(settings.ending("use_torch_compile", "use_shm"), False)
    changes |= dict.fromkeys(settings.ending("tokenizer_path"), str(model))
    return changes
