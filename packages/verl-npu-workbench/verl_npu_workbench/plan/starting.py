"""Starts a job on phantom NPUs and runs it up to its first step. The result is a list of findings, and how far the job
got."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from verl_npu import progress
from verl_npu.errors import PlanError
from verl_npu.findings import Finding, Severity, error
from verl_npu.language import gettext as _

from ..jobs.job import Job
from ..jobs.keys import (
    BATCH,
    GENERATION_BATCH,
    MAX_LENGTH,
    MINI_BATCH,
    NODES,
    NPUS,
    PATH,
    REWARD_MODELS,
    SAMPLES,
    VALIDATION_BATCH,
    has_critic,
    has_reference,
    size,
)
from ..jobs.layout import parallelism_of
from ..jobs.trainer import Trainer
from .fine_tuning import Names, module_of, names_of, tuning_changes
from .hardware import HARDWARE
from .job import Part, RankJob, Started, StartJob
from .model import Model, model_of
from .planning import Phases, Request, ask_rank, made_up

CODE = "start"
_STAND_IN, _STAND_IN_WITH_EXPERTS = "Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B"
_OF_MODELS = re.compile(
    r"/(megatron/(core/(models|transformer)|bridge)|mbridge|verl/(models|utils/megatron_utils\.py))\b"
)
"""The places of upstream's code that judge a model's own sizes and parts."""
_PROMPT, _RESPONSE, _PICTURE = 16, 16, 4
"""Numbers of tokens. They are small, because the lengths of sequences do not decide whether upstream rejects a
batch."""
_READ_FROM_UPSTREAM = frozenset({"batches", "choices", "parallel-sizes", "trainer-mode", "validation"})
"""Rules of `lint` that interpret upstream's code instead of running it."""
_SECONDS = 300.0
_FEWEST_ROWS = 64


@dataclass(frozen=True, slots=True)
class Start:
    """The result of starting a job, or an empty result if the job was not started."""

    found: Sequence[Finding] = ()
    said: str = ""
    """How far the job got before it was stopped."""
    not_judged: str = ""


def started(job: Job, model_config: Path | None, unconfined: bool) -> Start:
    """Start a job on phantom NPUs (shapes without values).

    Raises:
        PlanError: the start exceeds the time limit or this machine's memory.
    """
    began = time.monotonic()
    # The log stays if there is no answer.
    folder = Path(tempfile.mkdtemp(prefix="verl-npu-"))
    request = Request(folder, HARDWARE["a2"], model_config, seconds=_SECONDS, unconfined=unconfined)
    model, notes = _model(job, request)
    told = _ask(_job(job, model), job.trainer, request)
    shutil.rmtree(folder)
    if notes and _OF_MODELS.search(told.where):
        # The script's own model may pass there.
        told = replace(told, error="", missing=[*told.missing, told.error])
    found = [_refusal(told, job.trainer)] if told.error else []
    if any(job.settings.truth(f"{section}.enable") for section in REWARD_MODELS):
        notes.append(_("a reward model's own workers"))
    found += [_missing(each) for each in dict.fromkeys([*notes, *told.missing])]
    said = _("started in {seconds:.0f} s with {memory:.1f} GiB of this machine: passed {passed}").format(
        seconds=time.monotonic() - began,
        memory=told.host / (1 << 30),
        passed=_(", ").join(Part(each).value for each in told.passed) or _("nothing"),
    )
    none = _("the start of the job, which stopped before it completed any part")
    return Start(found, said, "" if told.passed or told.error else none)


def _model(job: Job, request: Request) -> tuple[Model, list[str]]:
    """Return the model of a script. If its sizes are unknown, return a stand-in and a note for the user."""
    names = names_of(job.trainer, job.settings)
    path, folder = job.settings.text(names.model if names else PATH), request.output / "model"
    try:
        return model_of(path, request.model_config, folder), []
    except PlanError as unknown:
        if request.model_config is not None:
            raise
        # Megatron refuses to divide the experts of a model that has none.
        stand_in = _STAND_IN_WITH_EXPERTS if parallelism_of(job.settings).expert > 1 else _STAND_IN
        note = _("{unknown}; {stand_in} replaces the model").format(unknown=unknown.subject, stand_in=stand_in)
        return model_of(stand_in, None, folder), [note]


def _job(job: Job, model: Model) -> StartJob:
    names = names_of(job.trainer, job.settings)
    rank = _rank(job, model) if names is None else _tuning_rank(job, names, model)
    batches = [job.settings.whole(key) for key in (BATCH, GENERATION_BATCH, VALIDATION_BATCH)]
    options = [f"--config-path={job.entry.folder}", f"--config-name={job.entry.name}"]
    return StartJob(
        rank=rank,
        module=str(job.entry.source) if job.trainer.module.endswith(".py") else job.trainer.module,
        arguments=[*options, *job.trainer.overrides],
        overrides=rank.changes,
        rows=max(*batches, _FEWEST_ROWS),
        trains=job.trainer.trains,
    )


def _rank(job: Job, model: Model) -> RankJob:
    """Return the rank of the last pipeline stage, because this stage computes the loss."""
    settings, sizes, local = job.settings, parallelism_of(job.settings), size(job.settings, NPUS)
    world, answers = local * size(settings, NODES), size(settings, SAMPLES)
    data = sizes.replicas(world)
    return RankJob(
        tree=str(job.tree),
        config=job.config,
        changes=made_up(settings, model.folder),
        rank=world // sizes.pipeline * (sizes.pipeline - 1),
        world=world,
        local=local,
        sequences=max(size(settings, MINI_BATCH) * answers // data, 1),
        scored=max(size(settings, BATCH) * answers // data, 1),
        prompt=_PROMPT,
        response=_RESPONSE,
        # Without pictures upstream takes a path on which LoRA fails.
        picture=replace(model.picture, tokens=_PICTURE) if model.picture else None,
        critic=has_critic(settings),
        reference=has_reference(settings),
    )


def _tuning_rank(job: Job, names: Names, model: Model) -> RankJob:
    world = job.trainer.ranks * job.trainer.nodes
    share = max(size(job.settings, BATCH) * size(job.settings, names.ulysses) // world, 1)
    return RankJob(
        tree=str(job.tree),
        config=job.config,
        changes=tuning_changes(names, job.settings, model.folder),
        rank=0,
        world=world,
        local=job.trainer.ranks,
        sequences=share,
        scored=share,
        prompt=0,
        response=size(job.settings, MAX_LENGTH),
        trainer=module_of(job),
    )


def _ask(job: StartJob, trainer: Trainer, request: Request) -> Started:
    log = request.output / "start.log"
    with progress.step(_("starting {module} on phantom NPUs").format(module=job.module)) as step:
        phases = Phases(log)

        def tick() -> None:
            step.detail = phases.poll()

        return ask_rank(job.rank, job, trainer, request, log, Started.of_json, tick)


def _refusal(told: Started, trainer: Trainer) -> Finding:
    """Return the finding for the error that upstream raised."""
    settings = settings_named(trainer.overrides, f"{told.error} {told.code}")
    return error(
        CODE,
        " ".join(told.error.split())[:600],
        subject=_(", ").join(settings) or Part(told.part).value,
        why=_("upstream stops the job with this error in {where}: `{code}`").format(
            where=told.where, code=told.code.strip()
        ),
        fix=_("change the setting that upstream rejects"),
    )


def without_repeats(read: list[Finding], started: Sequence[Finding]) -> list[Finding]:
    """Return the findings from reading the script, except the findings about settings that the started job also
    rejected. For these settings, the started job's findings are better, because they show upstream's own error and
    source line."""
    words = [word for each in started if each.refused for word in each.subject.split(_(", "))]
    keys = {word.lstrip("+").partition("=")[0] for word in words}
    return [each for each in read if not (each.refused and each.code in _READ_FROM_UPSTREAM and each.subject in keys)]


def _missing(text: str) -> Finding:
    return Finding(
        CODE,
        Severity.OK,
        " ".join(text.split())[:300],
        subject=_("a part of the job that was not checked"),
        why=_("lint cannot check this part of the job on this machine, so this part may still fail when the job runs"),
        fix=_("run lint again on a machine that has the job's packages and files"),
    )


def settings_named(overrides: tuple[str, ...], said: str) -> list[str]:
    """Return the overrides that upstream's error message mentions, either by their value or by the last component of
    their key."""
    words = {*re.findall(r"[\w.]+", said), *re.findall(r"\w+", said)}
    pairs = [(word, *word.lstrip("+").partition("=")[::2]) for word in overrides if "=" in word]
    by_value = [word for word, _key, value in pairs if _is_telling(value.strip("'\"")) and value.strip("'\"") in words]
    by_key = [word for word, key, _value in pairs if key.rpartition(".")[2] in words]
    # A name of several words can only be the setting.
    by_long_key = [word for word, key, _value in pairs if "_" in key.rpartition(".")[2] and word in by_key]
    both = [word for word in by_value if word in by_key]
    return (both or by_long_key or by_value or by_key)[:3]


def _is_telling(value: str) -> bool:
    """Return whether a value is so unusual that a message containing it must refer to it."""
    return len(value) > 1 and not re.fullmatch(r"[\d.]+|true|false|null|none", value, re.IGNORECASE)
