"""The rules that interpret upstream's code: the errors that end a job in verl, in verl's own words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from verl_npu.errors import SourceError
from verl_npu.findings import Finding, Rule, Stage, error, warning
from verl_npu.language import gettext as _
from verl_npu.registry.source.tree import SourceTree

from . import validated
from .installed import HERE
from .keys import BATCH, ESTIMATOR, MODEL, ROLLOUT, is_megatron, is_separate, rollout_npus
from .layout import parallelism_of
from .modes import mode_findings
from .script import Script, rule, source_of_trainer, trained_roles


def _validation_severity(script: Script) -> Callable[..., Finding]:
    """Return the function `error` if the trainer calls upstream's `validate_config`, and `warning` if it does not.

    The call is in the trainer's own file or, as at 796871d7, in RayPPOTrainer. recipe.spin calls a function of its own
    that has the same name.
    """
    trainer = script.sources.read("verl.trainer.ppo.ray_trainer") or b""
    asks = script.trainer.module == "verl.trainer.main_ppo" or re.search(
        rb"^\s*from verl\.utils\.config import [^\n]*\bvalidate_config\b.*(?<![\w.])validate_config\(",
        source_of_trainer(script),
        re.DOTALL | re.MULTILINE,
    )
    return error if asks or b"self._validate_config()" in trainer else warning


def _user_sources(script: Script) -> Iterator[bytes]:
    """Yield the source code of the user's recipe and reward functions, which may register additional names."""
    package, top = script.trainer.module.rpartition(".")[0], script.trainer.module.partition(".")[0]
    if package not in ("", "verl.trainer") and all(map(str.isidentifier, package.split("."))):
        sources = script.sources if top in script.sources else SourceTree.at(script.trainer.folder, (top,))
        yield from (sources.read(module) or b"" for module in sources.modules_below(package))
    paths = [Path(script.settings.text(key)).expanduser() for key in script.settings.matching(r".*\.path")]
    for path in (script.trainer.folder / path for path in (*paths, Path(script.trainer.module))):
        if path.suffix == ".py" and path.is_file():
            yield path.read_bytes()


def _starts_workers(script: Script) -> bool:
    """Return whether a trainer starts verl's own workers, on the number of NPUs that the settings give."""
    module = script.trainer.module
    return module == "verl.trainer.main_ppo" or b"verl.workers.fsdp_workers" in source_of_trainer(script)


_Refusals = Iterator[tuple[Callable[..., Finding], validated.Refusal]]
"""Errors that upstream's code raises, each with its severity."""


def _batches(script: Script) -> _Refusals:
    if not _starts_workers(script):
        return
    settings, sizes = script.settings, parallelism_of(script.settings)
    # Ranks that share a sequence have the same samples.
    replica = sizes.replica if is_megatron(settings) else sizes.sequence
    for role in trained_roles(script):
        for each in validated.batch_refusals(settings, script.npus, replica, script.sources, role):
            yield _validation_severity(script), each


def _is_own(script: Script) -> Callable[[str], bool]:
    """Return a function that tells whether code of the user's may register a name."""
    if script.settings.text(f"{MODEL}.external_lib") or "VERL_USE_EXTERNAL_MODULES" in script.environ:
        return lambda name: True
    try:
        own = list(_user_sources(script))
    except SourceError:
        return lambda name: True
    return lambda name: any(re.search(rb"[\"']%s[\"']" % re.escape(name.encode()), text) for text in own)


def _choices(script: Script) -> _Refusals:
    is_own, backend = _is_own(script), script.settings.text(f"{ROLLOUT}.checkpoint_engine.custom_backend_module")
    for each in script.unknown_names:
        if not (each.key == validated.BACKEND and backend) and not is_own(script.settings.text(each.key)):
            yield error, each


def _parts(script: Script) -> _Refusals:
    """Interpret verl's own program, whose parts are known."""
    settings, sources, roles = script.settings, script.sources, trained_roles(script)
    is_own, installed = _is_own(script), SourceTree.installed(("verl",)).place_of("verl")
    texts = {value for value in settings.values.values() if isinstance(value, str)}
    # Another environment may have other versions of packages.
    is_here = installed == sources.place_of("verl")
    for each in validated.part_refusals(settings, roles, script.npus, sources):
        if not any(is_own(word) for word in {*re.findall(r"[\w.-]+", each.message)} & texts):
            yield (error if is_here or HERE not in each.message else warning), each


def _validation(script: Script) -> _Refusals:
    # The rule for names has its own message.
    said = {each.message for each in script.unknown_names}
    # Several parts of upstream's code raise the same error, and some of them only in some recipes.
    for make, each in sorted(_validating(script), key=lambda found: found[0] is not error):
        if each.message not in said:
            yield make, each
        said.add(each.message)


def _validating(script: Script) -> _Refusals:
    settings, sources = script.settings, script.sources
    # A recipe with workers of its own may make no objects of the sections.
    make = error if script.trainer.module.startswith("verl.") or _starts_workers(script) else warning
    for each in validated.section_refusals(settings, trained_roles(script), sources):
        yield make, each
    # Trainers that stream samples have no train_batch_size, but they have a program of their own.
    has_batch = settings.whole(BATCH) > 0 or (script.trainer.module == "verl.trainer.main_ppo" and BATCH in settings)
    for each in validated.validation_refusals(settings, sources) if has_batch else ():
        yield _validation_severity(script), each
    if script.trainer.module == "verl.trainer.main_ppo":
        yield from _parts(script)
    # The actor's worker does not build a rollout with separate NPUs.
    builds = _starts_workers(script) and script.npus > 0 and not (is_separate(settings) or rollout_npus(settings))
    for each in validated.worker_refusals(settings, script.npus, sources) if builds else ():
        yield error, each


def _upstream_rule(code: str, find: Callable[[Script], _Refusals], about: str) -> Rule[Script]:
    """Return a rule that interprets upstream's code. The rule reports an error once."""

    def asked(script: Script) -> Iterator[Finding]:
        for make, each in (
            dict.fromkeys(find(script)) if script.trainer.trains and ESTIMATOR in script.settings else ()
        ):
            yield _refused(make, code, script, each)

    return Rule(code, asked, (Stage.SCRIPT,), about=about)


def _refused(make: Callable[..., Finding], code: str, script: Script, refusal: validated.Refusal) -> Finding:
    return make(
        code,
        script.settings.text(refusal.key) or _("settings that verl does not accept"),
        subject=refusal.key,
        why=_("verl ends the job with this error: {message}").format(message=" ".join(refusal.message.split())),
        fix=_("change the setting to a value that this verl accepts"),
    )


@rule("trainer-mode", "Settings, or a checkpoint engine, that the chosen mode of verl's v1 trainer refuses.")
def _trainer_mode(script: Script) -> Iterator[Finding]:
    return mode_findings(script.trainer.module, script.settings, script.sources)


@rule("unread", "A section of settings that the trainer does not read, although other programs of verl read it.")
def _unread(script: Script) -> Iterator[Finding]:
    keys = [word.lstrip("+").partition("=")[0] for word in script.trainer.overrides]
    sections = dict.fromkeys(key.partition(".")[0] for key in keys if re.match(r"\w+\.", key))
    for section in sections if script.trainer.module == "verl.trainer.main_ppo" else ():
        programs = validated.other_readers(section, script.trainer.module, script.sources)
        given = [key for key in keys if key.startswith(f"{section}.")]
        near = [key for key in script.settings.values if key.endswith(tuple(f".{each}" for each in given))]
        if programs:
            yield warning(
                "unread",
                _("a section that {trainer} does not read").format(trainer=script.trainer.module),
                subject=_(", ").join(given),
                why=_("only {programs} reads this section, so the settings have no effect").format(
                    programs=_(", ").join(programs)
                ),
                fix=_("set {keys} instead").format(keys=_(", ").join(near))
                if near
                else _("remove the settings, or set those that replace them in this verl"),
            )


RULES: tuple[Rule[Script], ...] = (
    _upstream_rule("batches", _batches, "Mini-batches or micro-batches that verl's workers cannot divide."),
    _upstream_rule(
        "validation",
        _validation,
        "Settings that verl refuses when it validates its configuration or builds objects from it.",
    ),
    _upstream_rule("choices", _choices, "Names, for example of an estimator, that verl does not know."),
    _trainer_mode,
    _unread,
)
