"""One plan from script to verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .. import environment
from ..errors import PlanError
from ..rehearse.composition import compose
from ..rehearse.settings import Settings, override
from ..rehearse.trainer import Trainer, of_cluster
from .budget import keeps_budget
from .hardware import Hardware
from .job import Job, Outcome, PhaseCost, Picture, Point
from .launch import is_setting, launched_with
from .lengths import Length, drawn_lengths, measured_lengths
from .model import Model, folder_of, model_of
from .overrides import MODELS, STEPS, overrides
from .pictures import check_text_only, picture_of
from .roles import has_critic, has_reference
from .rollout import Rollout, rollout_of
from .share import Share, share_of
from .tuning.names import Names, module_of, names_of
from .tuning.overrides import tuning_overrides
from .tuning.share import tuning_share

__all__ = ["Planned", "Request", "plan"]

_ACTOR_REF = "actor_rollout_ref"
_THRESHOLD = "1"  # MiB: smaller tensors are real
_MEMORY = "1024"  # GiB: what does not fit is to be seen, not to end
_TOGETHER = 2
_NO_FLEET = "fleet"
"""The feature that has ranks compare what is patched: a rank of a plan would wait for others that are not there."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a user asks for."""

    output: Path
    hardware: Hardware
    model_config: Path | None = None
    response: int | None = None
    """Tokens of the answers; None: the most that the script allows."""
    prompt: int | None = None
    """Tokens of the questions; None: the most that the script allows."""
    lengths: Path | None = None
    """A file of lengths that were measured, in place of both."""
    spread: float = 0.0
    """Standard deviation of the answers, as a part of `response`, which is their mean then; 0: they are alike."""
    picture: int = 0
    """Tokens of the picture in each prompt."""
    seconds: float = 600.0
    changes: tuple[tuple[str, object], ...] = ()
    """Settings besides the script's own: a knob that is tried."""
    model: Model | None = None
    """The model, if it has been made by a plan of the same script."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What was found."""

    trainer: Trainer
    settings: Settings
    model: Model
    share: Share
    rollout: Rollout | None
    """None for fine-tuning."""
    outcomes: tuple[Outcome, ...]
    hardware: Hardware
    seconds: float
    notes: tuple[str, ...]


def plan(trainer: Trainer, tree: Path, request: Request, told: Callable[[str], None] = lambda text: None) -> Planned:
    """Run one rank of each kind in phantom memory, and tell what its phases cost.

    `told` hears of each rank that is started.

    Raises:
        CompositionError: Hydra does not take the script's settings.
        PlanError: the model or the lengths are not known, or the sizes do not fit each other.
    """
    started = time.monotonic()
    trainer = launched_with(trainer, request.changes)
    given = [override(key, value) for key, value in request.changes if is_setting(key)]
    composition = compose(trainer, tree, given)
    settings = Settings(composition.values)
    names, bounded = names_of(trainer, settings), keeps_budget(trainer, tree)
    if names is None:
        work = _reinforcement(settings, request, bounded)
    else:
        module = module_of(trainer, composition.entry, tree)
        work = _tuning(names, trainer, settings, request, module, bounded)
    share, folder = work.share, request.output.resolve()
    jobs = [
        Job(
            tree=str(tree),
            folder=str(composition.entry.folder),
            name=composition.entry.name,
            overrides=[*trainer.overrides, *given, *work.overrides],
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
            picture=work.picture,
            critic=work.critic,
            reference=work.reference,
            trainer=work.module,
            flops=request.hardware.flops.value,
            bandwidth=request.hardware.bandwidth.value,
        )
        for rank in share.ranks
    ]
    with ThreadPoolExecutor(_TOGETHER) as pool:
        outcomes = tuple(pool.map(lambda job: _run(job, trainer, request, folder, told), jobs))
    return Planned(
        trainer,
        settings,
        work.model,
        share,
        work.rollout,
        outcomes,
        request.hardware,
        time.monotonic() - started,
        (*share.notes, *work.notes, *_not_shown(outcomes)),
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """What the two kinds of trainers differ in."""

    share: Share
    model: Model
    overrides: Sequence[str]
    rollout: Rollout | None = None
    picture: Picture | None = None
    critic: bool = False
    reference: bool = False
    module: str = ""
    notes: tuple[str, ...] = ()


def _reinforcement(settings: Settings, request: Request, bounded: bool) -> _Work:
    path = settings.text(MODELS[0])
    answers = settings.whole(f"{_ACTOR_REF}.rollout.n", 1)
    uneven = _uneven(path, request, settings, answers)
    share = share_of(settings, request.response, request.prompt, uneven, bounded)
    model = _model(path, request)
    picture, pictures = picture_of(model, request.picture, share)
    rollout = rollout_of(settings, model, share, request.hardware)
    return _Work(
        share,
        model,
        overrides(settings, share, model.folder),
        rollout,
        picture,
        has_critic(settings),
        has_reference(settings),
        notes=(*pictures, *rollout.notes),
    )


def _tuning(names: Names, trainer: Trainer, settings: Settings, request: Request, module: str, bounded: bool) -> _Work:
    path = settings.text(names.model)
    uneven = _uneven(path, request, settings, answers=1)
    share = tuning_share(names, trainer, settings, request.response, request.prompt, uneven, bounded)
    model = _model(path, request)
    check_text_only(model, request.picture)
    return _Work(share, model, tuning_overrides(names, settings, share, model.folder), module=module)


def _uneven(path: str, request: Request, settings: Settings, answers: int) -> Sequence[Length]:
    """The lengths of a run's sequences, measured or drawn; empty if all are alike."""
    if request.lengths:
        return measured_lengths(request.lengths, folder_of(path, request.model_config))
    if not request.spread or not request.response:
        return ()
    prompt = request.prompt or settings.whole("data.max_prompt_length")
    sequences = STEPS * max(settings.whole("data.train_batch_size") * answers, 1)
    return drawn_lengths(prompt, request.response, request.spread, sequences)


def _model(path: str, request: Request) -> Model:
    return request.model or model_of(path, request.model_config, request.output.resolve() / "model")


def _not_shown(outcomes: Sequence[Outcome]) -> list[str]:
    return [f"not shown, {each}" for each in dict.fromkeys(text for outcome in outcomes for text in outcome.not_shown)]


def _run(job: Job, trainer: Trainer, request: Request, folder: Path, told: Callable[[str], None]) -> Outcome:
    log = folder / f"rank-{job.rank}.log"
    exported = {name: text for name, text in trainer.exports.items() if not of_cluster(name)}
    given = _inherited(os.environ | exported)
    variables = {
        **given,
        environment.VIRTUAL.name: str(job.local),
        environment.DISABLE.name: ",".join(filter(None, (given.get(environment.DISABLE.name), _NO_FLEET))),
        environment.VIRTUAL_PHANTOM.name: _THRESHOLD,
        environment.VIRTUAL_MEMORY.name: _MEMORY,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    program = [sys.executable, "-m", f"{__package__}.rank"]
    with log.open("w") as errors:
        process = subprocess.Popen(
            program,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=job.tree,
        )
        told(f"rank {job.rank} of {job.world}")
        try:
            answer, _ = process.communicate(json.dumps(job.as_json()), timeout=request.seconds)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.wait()
            raise PlanError(
                subject=f"rank {job.rank}",
                expected=f"its phases to end in {request.seconds:.0f} s",
                found=f"it still ran; its log is {log}",
                fix="give it more time: --timeout SECONDS",
            ) from error
    if not answer.strip():
        lines = log.read_text(errors="replace").strip().splitlines()
        raise PlanError(
            subject=f"rank {job.rank}",
            expected="verl's workers to start in this environment",
            found=f"{(lines or ['no output'])[-1][:300]}",
            fix=f"read {log}",
        )
    return _outcome(json.loads(answer))


def _inherited(variables: Mapping[str, str]) -> dict[str, str]:
    """Leave out what has verl's workers ask Ray for their NPU: a plan has no Ray."""
    return {name: text for name, text in variables.items() if not name.startswith("RAY_")}


def _outcome(answer: Mapping[str, object]) -> Outcome:
    read = dict(answer)
    phases: Sequence[Mapping[str, object]] = read.pop("phases")  # type: ignore[assignment]
    points: Sequence[Mapping[str, object]] = read.pop("timeline")  # type: ignore[assignment]
    return Outcome(
        **read,  # type: ignore[arg-type]
        phases=[PhaseCost(**each) for each in phases],  # type: ignore[arg-type]
        timeline=[Point(**each) for each in points],  # type: ignore[arg-type]
    )
