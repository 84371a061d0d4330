"""Makes one plan: composes a script's settings, divides a step among ranks, and runs one rank of each kind in a
separate process."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TypeVar

from verl_npu import environment, progress
from verl_npu.ascend.variables import VIRTUAL_CACHE, VIRTUAL_MEMORY, VIRTUAL_NPUS, VIRTUAL_PHANTOM, VIRTUAL_TORCH_NPU
from verl_npu.errors import PlanError
from verl_npu.language import gettext as _

from ..extras import is_installed
from ..jobs.capture import fresh_home
from ..jobs.confined import named, sandbox_of, script_paths
from ..jobs.job import Job, compose
from ..jobs.keys import (
    ACTOR,
    BATCH,
    CRITIC,
    HOST_FRACTION,
    MAX_PROMPT,
    MINI_BATCH,
    PATH,
    SAMPLES,
    has_critic,
    has_reference,
    is_megatron,
    is_partly_on_host,
)
from ..jobs.settings import Settings, override
from ..jobs.trainer import Trainer, is_of_cluster
from ..processes import own_python
from ..sandbox import Limits, ask, available_memory, device_cache
from ..secrecy.variables import allowed
from .fine_tuning import Names, module_of, names_of, tuning_changes, tuning_share
from .hardware import GIB, Hardware
from .job import SAYS, Outcome, Part, Phase, Picture, RankJob, StartJob
from .lengths import Length, drawn_lengths, measured_lengths
from .model import Model, check_text_only, folder_of, model_of, picture_of
from .rollout import Rollout, other_engines, rollout_of, runs_inside
from .share import Share, keeps_budget, share_of, verl_of

TORCHRUN_RANKS, TORCHRUN_NODES = "--nproc_per_node", "--nnodes"
_FIELDS = {TORCHRUN_RANKS: "ranks", TORCHRUN_NODES: "nodes"}
_MODELS = (PATH, "critic.model.path", "reward.reward_model.model_path")
_STEPS = 100
"""The number of steps in a planned job. Schedules count these steps, and lengths are sampled for them."""
_NEEDED = 3 << 29
"""Bytes of this machine that a rank needs: 0.5 to 1.4 GiB were seen."""
_THRESHOLD = "1"  # MiB: smaller tensors are real
_MEMORY = "1024"  # GiB: enough to measure a job that does not fit, instead of ending it
TOGETHER = 2
"""Ranks that run at a time."""
_PROCESSES, _LARGEST_FILE = 512, 4 << 30
_USE_BRIDGE, _VANILLA = f"{ACTOR}.megatron.use_mbridge", f"{ACTOR}.megatron.vanilla_mbridge"
_PHASES = frozenset(phase.value for phase in (*Phase, *Part))
_Answer = TypeVar("_Answer")
_NO_FLEET = "fleet"
"""The feature that compares the patches of all ranks. It is turned off, because a plan's rank would wait for ranks
that do not exist."""


@dataclass(frozen=True, slots=True)
class Request:
    """A user's options for a plan."""

    output: Path
    hardware: Hardware
    model_config: Path | None = None
    response: int | None = None
    """The number of tokens of each answer. None means the largest number that the script allows."""
    prompt: int | None = None
    """The number of tokens of each prompt. None means the largest number that the script allows."""
    lengths: Path | None = None
    """A file with measured lengths. They replace `prompt` and `response`."""
    spread: float = 0.0
    """The standard deviation of the answers' lengths, divided by their mean, `response`. It is 0 if all answers have
    the same length."""
    picture: int = 0
    """The number of tokens of the image in each prompt."""
    seconds: float = 600.0
    memory: int = 0
    """Bytes of this machine's memory that each rank may take; 0 means all that is available."""
    changes: tuple[tuple[str, object], ...] = ()
    """Settings that replace the script's own, in order to try a knob."""
    model: Model | None = None
    """The model, if an earlier plan of the same script has already made it."""
    unconfined: bool = False
    """Whether to run code from the source tree without a sandbox."""
    sites: bool = False
    """Whether the plan is compared with a snapshot, for which ranks record where blocks are allocated."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The result of planning a job."""

    trainer: Trainer
    settings: Settings
    model: Model
    share: Share
    rollout: Rollout | None
    """The rollout; None for fine-tuning."""
    outcomes: tuple[Outcome, ...]
    hardware: Hardware
    seconds: float
    notes: tuple[str, ...]
    inside: bool = False
    """Whether the rollout's engine runs in the trainer's processes."""

    @property
    def servers(self) -> int:
        """The number of NPUs that only run rollout servers."""
        return self.rollout.servers if self.rollout else 0


def plan(trainer: Trainer, tree: Path, request: Request) -> Planned:
    """Run one rank of each kind on phantom NPUs, and return the cost of each phase.

    Raises:
        JobSettingError: Hydra rejects the script's settings.
        PlanError: the model or the lengths are unknown, or sizes do not match.
    """
    started = time.monotonic()
    trainer = changed(trainer, request.changes)
    composed = compose(trainer, tree, request.unconfined)
    settings = composed.settings
    names, bounded = names_of(trainer, settings), keeps_budget(trainer, tree)
    if names is None:
        work = _reinforcement(settings, request, bounded, trainer.exports)
    else:
        work = _fine_tuning(names, composed, request, bounded)
    share, folder = work.share, request.output.resolve()
    jobs = [
        RankJob(
            tree=str(tree),
            config=composed.config,
            changes=work.changes,
            rank=rank,
            world=share.world,
            local=share.local,
            sequences=share.sequences,
            scored=share.scored,
            prompt=share.padded[0],
            response=share.padded[1],
            lengths=share.lengths,
            scored_lengths=share.scored_lengths,
            rollout_weights=work.rollout.weights if work.rollout else 0,
            buckets=work.rollout.buckets if work.rollout else 0,
            picture=work.picture,
            critic=work.critic,
            reference=work.reference,
            trainer=work.module,
            flops=request.hardware.flops.value,
            bandwidth=request.hardware.bandwidth.value,
            sites=request.sites,
        )
        for rank in share.ranks
    ]
    _check_memory(request, min(len(jobs), TOGETHER))
    outcomes = _together(jobs, lambda job, ended: _run(job, trainer, request, folder, ended))
    not_shown = dict.fromkeys(text for outcome in outcomes for text in outcome.not_shown)
    return Planned(
        trainer=trainer,
        settings=settings,
        model=work.model,
        share=share,
        rollout=work.rollout,
        outcomes=outcomes,
        hardware=request.hardware,
        seconds=time.monotonic() - started,
        notes=(*share.notes, *work.notes, *(_("not shown: {each}").format(each=each) for each in not_shown)),
        inside=work.rollout is not None and not work.rollout.own_npus and runs_inside(settings, verl_of(tree)),
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """The parts of a plan that depend on the kind of trainer."""

    share: Share
    model: Model
    changes: Mapping[str, object]
    rollout: Rollout | None = None
    picture: Picture | None = None
    critic: bool = False
    reference: bool = False
    module: str = ""
    notes: tuple[str, ...] = ()


def _reinforcement(settings: Settings, request: Request, bounded: bool, exports: Mapping[str, str]) -> _Work:
    _check_megatron(settings)
    path = settings.text(PATH)
    uneven = _uneven(path, request, settings, answers=settings.whole(SAMPLES, 1))
    share = share_of(settings, request.response, request.prompt, uneven, bounded)
    model = _model(path, request)
    picture, pictures = picture_of(model, request.picture, share)
    rollout = rollout_of(settings, model, share, request.hardware, exports)
    # A later plan of the same script needs no second answer.
    others = other_engines(settings, request.hardware, lambda other: _other(other, request))
    engines = () if request.model else tuple(others)
    return _Work(
        share=share,
        model=model,
        changes=changes_of(settings, share, model.folder),
        rollout=rollout,
        picture=picture,
        critic=has_critic(settings),
        reference=has_reference(settings),
        notes=(*pictures, *rollout.notes, *engines, *([_partly_on_host(settings)] * is_partly_on_host(settings))),
    )


def _partly_on_host(settings: Settings) -> str:
    return _(
        "{key}={fraction}: the plan counts the part of the optimizer that Megatron then keeps on the NPU. The two "
        "published runs with such a setting needed no memory for this part, so the job may fit nevertheless"
    ).format(key=HOST_FRACTION, fraction=settings.number(HOST_FRACTION))


def _check_megatron(settings: Settings) -> None:
    if not is_megatron(settings):
        return
    needed = {"megatron.core": "megatron-core", "mindspeed": "MindSpeed"}
    if settings.truth(_USE_BRIDGE) and settings.get(_VANILLA) is False:
        needed["megatron.bridge"] = "Megatron-Bridge"
    elif settings.truth(_USE_BRIDGE):
        needed["mbridge"] = "mbridge"
    for module, package in needed.items():
        if not is_installed(module) and not _is_beside(module):
            raise PlanError(
                subject=f"{ACTOR}.strategy=megatron",
                expected=_("the package {package} in this environment, because a plan runs verl's own workers").format(
                    package=package
                ),
                found=_("none"),
                fix=_(
                    "install the version that `verl-npu setup --pin PIN` lists for the script's verl, or set "
                    "{variable} to the path of a MindSpeed checkout and run scripts/plan.sh, which creates an "
                    "environment"
                ).format(variable=environment.MINDSPEED.name),
            )


def _is_beside(module: str) -> bool:
    """Return whether a module is in the checkout of MindSpeed, which a plan's ranks import."""
    folder = environment.MINDSPEED.text()
    return bool(folder) and (Path(folder) / module / "__init__.py").is_file()


def _check_memory(request: Request, ranks: int) -> None:
    available = request.memory or available_memory() // ranks
    if available < _NEEDED:
        raise PlanError(
            subject=_("the memory of this machine"),
            expected=_(
                "at least {needed:.1f} GiB for each rank of the plan; {ranks} ranks run at the same time"
            ).format(needed=_NEEDED / GIB, ranks=ranks),
            found=f"{available / GIB:.1f} GiB",
            fix=_("close other programs, or raise the plan's memory limit with --memory"),
        )


def _fine_tuning(names: Names, job: Job, request: Request, bounded: bool) -> _Work:
    path = job.settings.text(names.model)
    uneven = _uneven(path, request, job.settings, answers=1)
    share = tuning_share(names, job.trainer, job.settings, request.response, request.prompt, uneven, bounded)
    model = _model(path, request)
    check_text_only(model, request.picture)
    changes = {
        BATCH: share.sequences * share.data,
        **tuning_changes(names, job.settings, model.folder),
        **share.budgets,
    }
    return _Work(share=share, model=model, changes=changes, module=module_of(job))


def _uneven(path: str, request: Request, settings: Settings, answers: int) -> Sequence[Length]:
    """Return the lengths of the sequences in a run, measured or sampled at random, or an empty sequence if all
    sequences have the same length."""
    if request.lengths:
        return measured_lengths(request.lengths, folder_of(path, request.model_config))
    if not request.spread or not request.response:
        return ()
    prompt = request.prompt or settings.whole(MAX_PROMPT)
    sequences = _STEPS * max(settings.whole(BATCH) * answers, 1)
    return drawn_lengths(prompt, request.response, request.spread, sequences)


def _model(path: str, request: Request) -> Model:
    return request.model or model_of(path, request.model_config, request.output.resolve() / "model")


def _other(path: str, request: Request) -> Model:
    return model_of(path, None, request.output.resolve() / "other")


def _together(jobs: Sequence[RankJob], run: Callable[[RankJob, Event], Outcome]) -> tuple[Outcome, ...]:
    """Run the ranks, a few at a time. `run` gets an event that is set when it must stop early."""
    ended = Event()
    with ThreadPoolExecutor(TOGETHER) as pool:
        try:
            return tuple(pool.map(lambda job: run(job, ended), jobs))
        except BaseException:
            # Only the main thread sees Ctrl-C; without this, leaving the pool would wait for the ranks.
            ended.set()
            raise


def _run(job: RankJob, trainer: Trainer, request: Request, folder: Path, ended: Event) -> Outcome:
    """Run one rank in a separate process and in a sandbox, because it runs code from the source tree."""
    log = folder / f"rank-{job.rank}.log"
    with progress.step(_("rank {rank} of {world}").format(rank=job.rank, world=job.world)) as step:
        phases = Phases(log)

        def tick() -> None:
            step.detail = phases.poll()
            if ended.is_set():
                raise CancelledError

        return ask_rank(job, job, trainer, request, log, Outcome.of_json, tick)


def ask_rank(
    job: RankJob,
    question: RankJob | StartJob,
    trainer: Trainer,
    request: Request,
    log: Path,
    read: Callable[[Mapping[str, object]], _Answer],
    tick: Callable[[], None],
) -> _Answer:
    """Send a request to a rank's program, which runs in a sandbox with phantom NPUs. Return the response as parsed by
    `read`.

    Raises:
        PlanError: the rank exceeded a limit, or returned no response.
    """
    tree, variables, sandbox = Path(job.tree), _variables(job, trainer, request.unconfined), None
    if not request.unconfined:
        sandbox = sandbox_of(trainer, tree, [log.parent / "model"])
        variables["HOME"] = str(fresh_home())
    limits = Limits(request.seconds, _PROCESSES, memory=request.memory or available_memory(), file=_LARGEST_FILE)
    command = own_python("-m", f"{__package__}.rank")
    done, answer = ask(sandbox, command, tree, variables, limits, log, dataclasses.asdict(question), tick)
    if done.limit:
        raise PlanError(
            subject=_("rank {rank}").format(rank=job.rank),
            expected=_("a rank that finishes within {seconds:.0f} s and within this machine's memory").format(
                seconds=request.seconds
            ),
            found=_("{limit}; the rank's log is {log}").format(limit=done.limit, log=log),
            fix=_("allow more time with --timeout SECONDS, or use a machine with more memory"),
        )
    try:
        if answer.wrong:
            raise ValueError(_("the answer is {wrong}").format(wrong=answer.wrong))
        return read(answer.content)
    except ValueError as error:
        lines = done.output.decode(errors="replace").strip().splitlines()
        raise PlanError(
            subject=_("rank {rank}").format(rank=job.rank),
            expected=_("verl's workers to start in this environment"),
            found=f"{(lines or ['no output'])[-1][:300]} ({error})",
            fix=_("read the log {log}").format(log=log),
        ) from error


_READ = 1 << 16
"""The number of bytes of a log that are read at once. An incomplete line is read again together with the next
bytes."""


class Phases:
    """Reads a rank's log while it grows, and determines the rank's current phase or, while a job is starting, the
    current startup step."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._at = 0
        self._begun: list[str] = []

    def poll(self) -> str:
        """Describe the rank's current phase."""
        for line in self._lines():
            name = line.removeprefix(SAYS)
            if name != line and name in _PHASES:
                self._begun.append(name)
        if not self._begun:
            return "importing torch and verl"
        return _("{begun} (phase {count})").format(begun=self._begun[-1], count=len(self._begun))

    def _lines(self) -> list[str]:
        """Return the lines that have been completed since the last call."""
        try:
            with self._log.open("rb") as log:
                log.seek(self._at)
                data = log.read(_READ)
        except FileNotFoundError:
            return []
        whole = data.rfind(b"\n") + 1 or (len(data) if len(data) == _READ else 0)
        self._at += whole
        return data[:whole].decode(errors="replace").splitlines()


def _variables(job: RankJob, trainer: Trainer, unconfined: bool) -> dict[str, str]:
    exported = {name: text for name, text in trainer.exports.items() if not is_of_cluster(name)}
    # With Ray's variables, verl's workers would ask Ray for their NPU, and a plan has no Ray.
    own = dict(os.environ) if unconfined else allowed(os.environ, named(trainer))
    given = {name: text for name, text in (own | exported).items() if not name.startswith("RAY_")}
    paths = [environment.MINDSPEED.text(), *own.get("PYTHONPATH", "").split(os.pathsep), *script_paths(trainer)]
    return {
        **given,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        VIRTUAL_NPUS: str(job.local),
        environment.DISABLE.name: ",".join(filter(None, (given.get(environment.DISABLE.name), _NO_FLEET))),
        VIRTUAL_PHANTOM: _THRESHOLD,
        # A torch_npu that is installed, as on every machine with NPUs, cannot make phantom tensors.
        VIRTUAL_TORCH_NPU: "ours",
        VIRTUAL_MEMORY: _MEMORY,
        VIRTUAL_CACHE: str(device_cache()),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def changed(trainer: Trainer, changes: Iterable[tuple[str, object]]) -> Trainer:
    """Return a copy of the trainer with changes to its torchrun options, variables, or Hydra settings."""
    given = dict(changes)
    options = {_FIELDS[key]: given.pop(key) for key in _FIELDS if key in given}
    budget = environment.TOKEN_BUDGET.name
    exports = {**trainer.exports, **({budget: str(given.pop(budget))} if budget in given else {})}
    settings = (*trainer.overrides, *(override(key, value) for key, value in given.items()))
    return dataclasses.replace(trainer, exports=exports, overrides=settings, **options)  # type: ignore[arg-type]


def changes_of(settings: Settings, share: Share, model: Path) -> dict[str, object]:
    """Return the settings for a run in which each data-parallel replica processes `share.sequences` sequences, in
    micro batches of the same size as in the real job. The settings do not require any files of the real job.

    `model` is the folder of a model without weights.
    """
    size = share.sequences * share.data
    changes: dict[str, object] = {
        SAMPLES: 1,
        BATCH: size,
        MINI_BATCH: size,
    }
    if (mini_batch := f"{CRITIC}.ppo_mini_batch_size") in settings:
        changes[mini_batch] = size
    changes |= dict(_without_use(settings, share))
    # verl's other budgets default to the actor's, which the plan may raise.
    changes |= {batch.key: batch.size for batch in share.micro_batches if batch.dynamic}
    changes |= share.budgets
    changes |= made_up(settings, model)
    if (contents := f"{ACTOR}.checkpoint.save_contents") in settings:
        changes[contents] = ["model", "optimizer", "extra"]
    return changes


def made_up(settings: Settings, model: Path) -> dict[str, object]:
    """Return settings that replace the job's models with `model`, the folder of a model without weights. The settings
    turn off torch.compile and set the optimizer's number of training steps, which the trainer would compute from its
    data."""
    changes: dict[str, object] = {key: str(model) for key in _MODELS if settings.get(key) is not None}
    changes |= dict.fromkeys(settings.ending("use_torch_compile"), False)
    # The trainer computes this from its data if the script does not set it.
    steps = settings.get("trainer.total_training_steps")
    changes |= dict.fromkeys(settings.matching(r".*\.optim\.total_training_steps"), _STEPS if steps is None else steps)
    changes |= dict.fromkeys(settings.ending("tokenizer_path"), str(model))
    return changes


def _without_use(settings: Settings, share: Share) -> Iterator[tuple[str, object]]:
    """Yield micro-batch sizes that divide a mini batch, for roles with a token budget.

    For these roles, verl uses the budget and ignores the sizes, but it still checks the sizes. Source:
    verl/workers/fsdp_workers.py, "normalized ppo_mini_batch_size … should be divisible".
    """
    for role in (ACTOR, CRITIC):
        if not settings.truth(f"{role}.use_dynamic_bsz"):
            continue
        for name, one in (("ppo_micro_batch_size_per_gpu", 1), ("ppo_micro_batch_size", share.data)):
            if settings.whole(f"{role}.{name}") > 0:
                yield f"{role}.{name}", one
