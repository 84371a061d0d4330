"""The subjects (packages, variables, and devices) that the doctor examines. They are ordered so that fixing one
subject never breaks an earlier one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from verl_npu.errors import CommandError
from verl_npu.findings import Finding, Rule, Stage
from verl_npu.language import gettext as _

from . import cann, machine, packages, triton, variables
from .earlier_plugin import judge_earlier_plugin
from .probes import PROBES, probe
from .site import Level, Site


@dataclass(frozen=True, slots=True)
class Subject(Rule[Site]):
    """One subject of the examination. It yields one or more findings."""

    stages: tuple[Stage, ...] = (Stage.ENVIRONMENT,)
    level: Level = Level.STATIC
    """The lowest level that includes the subject."""
    parts: tuple[str, ...] = ()
    """The codes that its findings may have besides the subject's own code."""


SUBJECTS = (
    Subject("python", packages.judge_python, about="Checks that the pin of verl supports this Python."),
    Subject("verl", packages.judge_verl, about="Shows the installed verl, and the pin that defines its requirements."),
    Subject(
        "patches",
        packages.judge_patches,
        about="Checks that each feature is compatible with the installed verl, as `verl-npu check` does.",
    ),
    Subject(
        "ways-in",
        packages.judge_ways_in,
        about="Checks that every process that imports torch loads verl-npu; otherwise verl runs unpatched.",
    ),
    Subject(
        "earlier-plugin",
        judge_earlier_plugin,
        about="Looks for an earlier plugin of the same name, and for the files that it edited.",
    ),
    Subject(
        "npus",
        machine.judge_npus,
        parts=("npu-memory",),
        about="Checks that there are NPUs that are healthy, free, and covered by verl's documentation.",
    ),
    Subject(
        "driver",
        machine.judge_driver,
        about="Checks the version of the driver; a later version than the documented one is accepted.",
    ),
    Subject(
        "cann",
        cann.judge_cann,
        about="Checks that CANN is installed in the pin's version, and that the environment is set up for it.",
    ),
    Subject(
        "nnal",
        cann.judge_nnal,
        about="Checks that the library ATB, which vllm-ascend needs, is installed and set up.",
    ),
    Subject(
        "torch-pair",
        packages.judge_torch,
        about="Checks that torch_npu was built for the installed PyTorch.",
    ),
    Subject(
        "libraries",
        cann.judge_loadable,
        parts=("torch_npu-libraries", "vllm-ascend-libraries"),
        about="Checks that all shared libraries that torch_npu and vllm-ascend need can be found, including CANN's.",
    ),
    *(
        Subject(
            component.value,
            partial(packages.judge_versions, component=component),
            about=_(
                "Checks that {name} is installed, works on NPUs, and has a version that the pin's documentation lists."
            ).format(name=component.value),
        )
        for component in packages.COMPARED
    ),
    Subject(
        "triton",
        triton.judge_triton,
        parts=("triton-cann",),
        about="Checks that triton has not overwritten files of triton-ascend, which have the same names, and that the "
        "CANN release in triton-ascend's documentation is installed.",
    ),
    Subject(
        "engine-pair",
        packages.judge_engine,
        about="Checks that vLLM and vllm-ascend fit together; on NPUs neither works without the other.",
    ),
    Subject(
        "megatron-pair",
        packages.judge_megatron,
        about="Checks that MindSpeed and Megatron are installed and fit together: MindSpeed adapts Megatron to NPUs.",
    ),
    Subject(
        "variables",
        variables.judge_variables,
        parts=tuple(rule.name for rule in variables.RULES),
        about="Checks that each documented environment variable has a valid value.",
    ),
    Subject("hccl-ports", machine.judge_ports, about="Checks that the ports that HCCL uses are free on this host."),
    Subject(
        "shared-memory",
        machine.judge_shared_memory,
        about="Checks that /dev/shm is large enough for Ray's objects and for the transfer of weights.",
    ),
    Subject(
        "open-files",
        machine.judge_open_files,
        about="Checks that a process may open as many files and sockets as Ray needs.",
    ),
    *(Subject(each.name, partial(probe, asked=each), level=each.level, about=each.about) for each in PROBES),
)
NAMES = tuple(subject.code for subject in SUBJECTS)

_LEVELS = (Level.STATIC, Level.IMPORT, Level.DEVICE)


def examine(site: Site, level: Level = Level.STATIC, only: Sequence[str] = ()) -> list[Finding]:
    """Examine all subjects up to a level, or only the subjects that `only` names.

    Raises:
        CommandError: `only` has an unknown name, or names a subject of a higher level.
    """
    reached = _LEVELS[: _LEVELS.index(level) + 1]
    known = {name: subject for subject in SUBJECTS for name in (subject.code, *subject.parts)}
    for name in only:
        subject = known.get(name)
        if subject is None:
            raise CommandError(
                subject="--only",
                expected=_("one or more of {names}").format(names=_(", ").join(NAMES)),
                found=name,
                fix=_("correct the name"),
            )
        if subject.level not in reached:
            raise CommandError(
                subject=f"--only {name}",
                expected=f"--level {subject.level.value}",
                found=f"--level {level.value}",
                fix=_("add --level {level}").format(level=subject.level.value),
            )
    asked = [known[name] for name in only] if only else [subject for subject in SUBJECTS if subject.level in reached]
    return [finding for subject in dict.fromkeys(asked) for finding in _asked(subject, site, only)]


def _asked(subject: Subject, site: Site, only: Sequence[str]) -> list[Finding]:
    """Return the findings of a subject. If some of them have codes that `only` names, return only these.

    If none has such a code, all findings are returned, because they explain why. For example, without NPUs there is no
    finding about the NPUs' memory, so the finding that NPUs are missing is returned.
    """
    found = list(subject.ask(site))
    named = [finding for finding in found if finding.code in only]
    return found if not only or subject.code in only else named or found
