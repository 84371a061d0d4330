"""The subjects of the doctor, in the order in which they are shown: mending one breaks none that was mended before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ...errors import CommandLineError
from ...findings import Finding, Rule, Stage
from ...language import gettext as _
from . import cann, machine, packages, variables
from .earlier_plugin import judge_earlier_plugin
from .probes import PROBES, probe
from .site import Level, Site

__all__ = ["NAMES", "SUBJECTS", "Subject", "examine"]


@dataclass(frozen=True, slots=True)
class Subject(Rule[Site]):
    """One thing that is looked at; it yields a finding, or several."""

    stages: tuple[Stage, ...] = (Stage.ENVIRONMENT,)
    level: Level = Level.STATIC
    """The level from which on it is looked at."""
    parts: tuple[str, ...] = ()
    """The names of its findings that are not its own."""


SUBJECTS = (
    Subject("python", packages.judge_python),
    Subject("verl", packages.judge_verl),
    Subject("patches", packages.judge_patches),
    Subject("ways-in", packages.judge_ways_in),
    Subject("earlier-plugin", judge_earlier_plugin),
    Subject("npus", machine.judge_npus, parts=("npu-memory",)),
    Subject("driver", machine.judge_driver),
    Subject("cann", cann.judge_cann),
    Subject("nnal", cann.judge_nnal),
    Subject("torch-pair", packages.judge_torch),
    Subject("libraries", cann.judge_loadable, parts=("torch_npu-libraries", "vllm-ascend-libraries")),
    *(
        Subject(component.value, partial(packages.judge_versions, component=component))
        for component in packages.COMPARED
    ),
    Subject("triton", packages.judge_triton),
    Subject("engine-pair", packages.judge_engine),
    Subject("megatron-pair", packages.judge_megatron),
    Subject("variables", variables.judge_variables, parts=tuple(rule.name for rule in variables.RULES)),
    Subject("hccl-ports", machine.judge_ports),
    Subject("shared-memory", machine.judge_shared_memory),
    Subject("open-files", machine.judge_open_files),
    *(Subject(each.name, partial(probe, asked=each), level=each.level) for each in PROBES),
)
NAMES = tuple(subject.code for subject in SUBJECTS)

_LEVELS = (Level.STATIC, Level.IMPORT, Level.DEVICE)


def examine(site: Site, level: Level = Level.STATIC, only: Sequence[str] = ()) -> list[Finding]:
    """Look at all subjects up to a level, or at those that `only` names.

    Raises:
        CommandLineError: `only` names what is no subject, or one of a higher level.
    """
    reached = _LEVELS[: _LEVELS.index(level) + 1]
    known = {name: subject for subject in SUBJECTS for name in (subject.code, *subject.parts)}
    for name in only:
        subject = known.get(name)
        if subject is None:
            raise CommandLineError(
                subject="--only",
                expected=_("names of {names}").format(names=_(", ").join(NAMES)),
                found=name,
                fix=_("correct the name"),
            )
        if subject.level not in reached:
            raise CommandLineError(
                subject=f"--only {name}",
                expected=f"--level {subject.level.value}",
                found=f"--level {level.value}",
                fix=_("add --level {level}").format(level=subject.level.value),
            )
    asked = [known[name] for name in only] if only else [subject for subject in SUBJECTS if subject.level in reached]
    return [
        finding
        for subject in dict.fromkeys(asked)
        for finding in subject.ask(site)
        if not only or subject.code in only or finding.code in only
    ]
