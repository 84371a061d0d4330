"""The subjects of the doctor, in the order in which they are shown: mending one breaks none that was mended before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from verl_npu.errors import CommandLineError
from verl_npu.findings import Finding, Rule, Stage
from verl_npu.language import gettext as _

from . import cann, machine, packages, triton, variables
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
    Subject("python", packages.judge_python, about="Whether the pin of verl is meant for this Python."),
    Subject("verl", packages.judge_verl, about="Which verl is here, and by which pin it is therefore judged."),
    Subject(
        "patches", packages.judge_patches, about="What `verl-npu check` says: whether each feature fits this verl."
    ),
    Subject(
        "ways-in",
        packages.judge_ways_in,
        about="Whether every process that imports torch loads verl-npu; otherwise verl runs unpatched.",
    ),
    Subject(
        "earlier-plugin",
        judge_earlier_plugin,
        about="Whether an earlier plugin of the same name is here, or what it edited.",
    ),
    Subject(
        "npus",
        machine.judge_npus,
        parts=("npu-memory",),
        about="Whether there are NPUs, healthy, of a model that verl's documents are about, and free.",
    ),
    Subject(
        "driver",
        machine.judge_driver,
        about="Which driver is there; a later one than the documents name is right, too.",
    ),
    Subject(
        "cann",
        cann.judge_cann,
        about="Whether there is a CANN, whether the environment is set up for it, and whether its version is the "
        "pin's.",
    ),
    Subject("nnal", cann.judge_nnal, about="Whether the library ATB, which vllm-ascend needs, is there and set up."),
    Subject(
        "torch-pair",
        packages.judge_torch,
        about="Whether torch_npu was built for the PyTorch that is installed: it is linked against one.",
    ),
    Subject(
        "libraries",
        cann.judge_loadable,
        parts=("torch_npu-libraries", "vllm-ascend-libraries"),
        about="Whether all shared libraries that torch_npu and vllm-ascend need would be found, CANN's among them.",
    ),
    *(
        Subject(
            component.value,
            partial(packages.judge_versions, component=component),
            about=_(
                "Whether {name} is there, supported on NPUs, and of a version that the pin's documents name."
            ).format(name=component.value),
        )
        for component in packages.COMPARED
    ),
    Subject(
        "triton",
        triton.judge_triton,
        parts=("triton-cann",),
        about="Whether triton-ascend's files are its own, as triton's are of the same names; and whether the CANN is "
        "there that its documents name.",
    ),
    Subject(
        "engine-pair",
        packages.judge_engine,
        about="Whether vLLM and vllm-ascend fit each other: neither does anything on NPUs without the other.",
    ),
    Subject(
        "megatron-pair",
        packages.judge_megatron,
        about="Whether MindSpeed and Megatron are both there and fit each other: MindSpeed changes Megatron for NPUs.",
    ),
    Subject(
        "variables",
        variables.judge_variables,
        parts=tuple(rule.name for rule in variables.RULES),
        about="Whether each environment variable that the documents name holds what its reader takes.",
    ),
    Subject("hccl-ports", machine.judge_ports, about="Whether the ports that HCCL listens on are free on this host."),
    Subject(
        "shared-memory",
        machine.judge_shared_memory,
        about="Whether /dev/shm is large enough for Ray's objects and for weights that are handed over in it.",
    ),
    Subject(
        "open-files",
        machine.judge_open_files,
        about="Whether a process may have as many files and sockets open as Ray needs.",
    ),
    *(Subject(each.name, partial(probe, asked=each), level=each.level, about=each.about) for each in PROBES),
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
    return [finding for subject in dict.fromkeys(asked) for finding in _asked(subject, site, only)]


def _asked(subject: Subject, site: Site, only: Sequence[str]) -> list[Finding]:
    """Return what a subject says, limited to the codes in `only` if it has findings of these.

    Without NPUs, for example, nothing is said of their memory: then the finding that they are missing answers.
    """
    found = list(subject.ask(site))
    named = [finding for finding in found if finding.code in only]
    return found if not only or subject.code in only else named or found
