"""Checks the values of the environment variables that the pins' documentation mentions."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from verl_npu import environment
from verl_npu.ascend.variables import ALLOCATOR, EXPANDABLE_SEGMENTS, NZ, SHARED, VISIBLE_DEVICES
from verl_npu.features import wrong_settings
from verl_npu.findings import Finding, Severity, Stage, error, ok
from verl_npu.language import gettext as _
from verl_npu.language import ngettext

from ..pins import Component
from .machine import read_ranges
from .site import Site

Judge = Callable[[str, Site], str]
"""A function that takes a variable's value, and returns a description of the problem or an empty string."""


@dataclass(frozen=True, slots=True)
class VariableRule:
    """A rule for the valid values of one variable."""

    name: str
    judge: Judge
    expected: str
    why: str
    severity: Severity = Severity.WARNING
    stages: tuple[Stage, ...] = (Stage.ENVIRONMENT,)
    """The stages that can check the variable. Scripts are a stage only if the variable's value is enough to judge
    it."""
    value: str = ""
    """The value to set instead. Empty if it is best to unset the variable."""


def _one_of(*words: str) -> Judge:
    return lambda text, site: "" if text in words else _("an unknown value")


def _number(least: float, most: float = float("inf")) -> Judge:
    def judge(text: str, site: Site) -> str:
        try:
            value = float(text)
        except ValueError:
            return _("not a number")
        return "" if least <= value <= most else _("out of range")

    return judge


def unreadable_devices(text: str) -> str:
    """Describe the error in a list of visible NPUs, without checking which NPUs the machine has. Return an empty
    string if the list is valid."""
    numbers = [each.strip() for each in text.split(",")]
    if not text.strip():
        return _("an empty list of NPUs")
    if not all(number.isdecimal() for number in numbers):
        return _("not numbers")
    if len({*numbers}) < len(numbers):
        return _("a number twice")
    return ""


def _visible(text: str, site: Site) -> str:
    if trouble := unreadable_devices(text):
        return trouble
    numbers = [each.strip() for each in text.split(",")]
    npus = site.smi.npus
    count = int(site.virtual) if site.virtual.isdecimal() else len(npus)
    # A container with only the last cards may number them as the host does; an A3 card has two NPUs.
    last = 0 if site.virtual else max(((npu.card + 1) * (2 if npu.kind == "a3" else 1) for npu in npus), default=0)
    beyond = [number for number in numbers if count and int(number) >= max(count, last)]
    return (
        ngettext("{beyond}, but there is {count} NPU here", "{beyond}, but there are {count} NPUs here", count).format(
            beyond=_(", ").join(beyond), count=count
        )
        if beyond
        else ""
    )


def _ports(text: str, site: Site) -> str:
    return "" if text.strip().lower() == "auto" or read_ranges(text) else _("not a range of ports")


def _address(text: str, site: Site) -> str:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _("not an IP address")
    return ""


def _interface(text: str, site: Site) -> str:
    here = [folder.name for folder in site.at("/sys/class/net").glob("*")]
    without = text.startswith("^")
    exact = text.lstrip("^").startswith("=")
    names = [name.removeprefix("=") for name in text.lstrip("^").split(",") if name]
    found = [each for each in here if any(each == name if exact else each.startswith(name) for name in names)]
    if not here or (found and not without) or (without and len(found) < len(here)):
        return ""
    return _("no such interface; this host has {here}").format(here=_(", ").join(sorted(here)))


def _sleeping(text: str, site: Site) -> str:
    serves = site.package(Component.VLLM_ASCEND) is not None
    return (
        _("a value that vllm-ascend's sleep mode does not support")
        if serves and EXPANDABLE_SEGMENTS in text.replace(" ", "")
        else ""
    )


def _weight_format(text: str, site: Site) -> str:
    engine = site.package(Component.VLLM_ASCEND)
    unread = engine is not None and engine.parsed is not None and engine.parsed < _READS_NZ
    return "" if unread or text == NZ.value else "not 0"


def _without_v1(text: str, site: Site) -> str:
    vllm = site.package(Component.VLLM)
    recent = vllm is not None and vllm.parsed is not None and vllm.parsed.release >= (0, 11)
    return _("a request for the V0 engine, which vLLM 0.11 and newer does not have") if text == "0" and recent else ""


def _attention(text: str, site: Site) -> str:
    return "" if re.search("ASCEND|CUSTOM", text.upper()) else _("an attention that vllm-ascend does not have")


def _pinned(text: str, site: Site) -> str:
    return "" if text.lower() == "false" else _("a request to pin each process")


def _bound_twice(text: str, site: Site) -> str:
    engine = site.package(Component.VLLM_ASCEND)
    binds = engine is not None and engine.parsed is not None and engine.parsed >= _BINDS_CPUS
    return _("a second binding beside vllm-ascend's own") if binds and site.arch == "arm" and text[0] in "12" else ""


def _preloaded(text: str, site: Site) -> str:
    missing = [each for each in re.split(r"[:\s]+", text) if each.startswith("/") and not Path(each).is_file()]
    return _("no such file: {missing}").format(missing=_(", ").join(missing)) if missing else ""


_SECONDS = _("a number of seconds")
_READS_NZ = Version("0.11.0rc1")
"""The first vllm-ascend release that reads the variable VLLM_ASCEND_ENABLE_NZ."""
_BINDS_CPUS = Version("0.18.0rc1")
"""The first vllm-ascend release that binds the CPUs of its engines by default, on ARM."""
_HCCL_REFUSES = _("with any other value, HCCL fails when the first communicator is created")
_HCCL_MEETS = _("the ranks of HCCL connect through this interface or address, and cannot connect if it is incorrect")
_INTERFACES = _("names of network interfaces that every host has")

_EITHER = (Stage.SCRIPT, Stage.ENVIRONMENT)

RULES = (
    VariableRule(
        NZ.name,
        _weight_format,
        "0",
        f"verl-npu ends a job that copies weights into an engine: {NZ.reason}",
        Severity.ERROR,
        value=NZ.value,
    ),
    VariableRule(
        ALLOCATOR,
        _sleeping,
        _("expandable_segments:False, or no expandable_segments"),
        _("vllm-ascend's sleep mode fails with `Expandable segments are not compatible with memory pool`"),
    ),
    VariableRule(
        VISIBLE_DEVICES,
        _visible,
        _("the numbers of some of this machine's NPUs, separated by commas, each number once"),
        _("CANN fails, or shows fewer NPUs than the job uses"),
        Severity.ERROR,
    ),
    VariableRule(
        "TASK_QUEUE_ENABLE",
        _one_of("0", "1", "2"),
        "0, 1 or 2",
        _("torch_npu knows only these three levels"),
        stages=_EITHER,
    ),
    VariableRule(
        "ASCEND_LAUNCH_BLOCKING",
        _one_of("0"),
        _("0, or an unset variable"),
        _("the host waits for each operator, so training is several times slower and graphs cannot be captured"),
        stages=_EITHER,
    ),
    VariableRule(
        "NPU_FA2_SPARSE_MODE",
        _one_of("2", "3"),
        "2 or 3",
        _("the import of transformers' NPU attention fails with a ValueError"),
        Severity.ERROR,
        stages=_EITHER,
    ),
    VariableRule(
        "VLLM_USE_V1", _without_v1, _("1, or an unset variable"), _("the engine does not start"), Severity.ERROR
    ),
    VariableRule(
        "VLLM_ATTENTION_BACKEND",
        _attention,
        _("an unset variable, though verl's quickstarts for Ascend up to v0.7 export XFORMERS"),
        _(
            "vllm-ascend ignores this variable and chooses the attention itself. But vLLM 0.8 to 0.10 takes "
            "XFORMERS as a request for its V0 engine, and fails with NotImplementedError if VLLM_USE_V1=1 is "
            "set, too"
        ),
        stages=_EITHER,
    ),
    VariableRule(
        "HCCL_CONNECT_TIMEOUT",
        _number(120, 7200),
        _("{seconds} from 120 to 7200").format(seconds=_SECONDS),
        _HCCL_REFUSES,
        value="1500",
        stages=_EITHER,
    ),
    VariableRule(
        "HCCL_EXEC_TIMEOUT",
        _number(0, 2**31 - 1),
        _("{seconds} from 0 to {value}").format(seconds=_SECONDS, value=2**31 - 1),
        _HCCL_REFUSES,
        value="3600",
        stages=_EITHER,
    ),
    VariableRule(
        "HCCL_BUFFSIZE", _number(1), _("a number of MB, at least 1"), _HCCL_REFUSES, value="200", stages=_EITHER
    ),
    VariableRule(
        "HCCL_IF_BASE_PORT",
        _number(1024, 65520),
        _("a port from 1024 to 65520"),
        _HCCL_REFUSES,
        value="60000",
        stages=_EITHER,
    ),
    VariableRule("HCCL_IF_IP", _address, _("an IP address of this host"), _HCCL_MEETS, stages=_EITHER),
    VariableRule(
        "HCCL_HOST_SOCKET_PORT_RANGE", _ports, _("a range such as 60000-60050, or auto"), _HCCL_REFUSES, stages=_EITHER
    ),
    VariableRule(
        "HCCL_NPU_SOCKET_PORT_RANGE", _ports, _("a range such as 61000-61050, or auto"), _HCCL_REFUSES, stages=_EITHER
    ),
    VariableRule("HCCL_SOCKET_IFNAME", _interface, _INTERFACES, _HCCL_MEETS),
    VariableRule(
        "GLOO_SOCKET_IFNAME",
        _interface,
        _INTERFACES,
        _("the CPU process group fails with `Unable to find address for` that name"),
        Severity.ERROR,
    ),
    VariableRule("TP_SOCKET_IFNAME", _interface, _INTERFACES, _("TensorPipe connects through this interface")),
    VariableRule(
        "OMP_PROC_BIND",
        _pinned,
        _("false, or an unset variable"),
        _(
            "libgomp pins each process to a single CPU as soon as it imports torch; vllm-ascend then skips its own "
            "binding (vllm-ascend#11307)"
        ),
        value="false",
        stages=_EITHER,
    ),
    VariableRule(
        "CPU_AFFINITY_CONF",
        _bound_twice,
        _("an unset variable, or enable_cpu_binding=False in the engine's additional_config"),
        _(
            "vllm-ascend divides the CPUs that a process may use among the engines, and after torch_npu's binding few "
            "are left: on A2 an engine keeps 2 of 20, and on A3 vllm-ascend skips its binding (computed by its code)"
        ),
    ),
    VariableRule(
        "LD_PRELOAD",
        _preloaded,
        _("files that exist"),
        _("each process prints an error of ld.so, and runs without the library"),
    ),
)
"""Rules for variables other than VERL_NPU_*. Variables without a rule are accepted as they are."""


def judge_variables(site: Site) -> Iterator[Finding]:
    """Yield a finding for each variable with an invalid value. If all values are valid, yield one finding that says
    so."""
    wrong = [*wrong_variables(site, Stage.ENVIRONMENT)]
    yield from wrong
    if not wrong:
        names = {rule.name for rule in RULES} | {shared.name for shared in SHARED}
        count = len(names & {*site.environ})
        yield ok("variables", _("{count} documented variables are set, all correctly").format(count=count))


_ENDS = _("the import of verl fails with this error")
_ENDS_UNDER_STRICT = _("with {strict}=1 {ends}").format(strict=environment.STRICT.name, ends=_ENDS)
_COSTS = {
    environment.SWITCH.name: _("verl-npu stays off, and verl runs unpatched; {ends_under_strict}").format(
        ends_under_strict=_ENDS_UNDER_STRICT
    ),
    environment.STRICT.name: _ENDS,
    environment.DISABLE.name: _("the unknown name is ignored and nothing is switched off; {ends_under_strict}").format(
        ends_under_strict=_ENDS_UNDER_STRICT
    ),
    environment.FORCE.name: _("the unknown name is ignored and nothing is forced; {ends_under_strict}").format(
        ends_under_strict=_ENDS_UNDER_STRICT
    ),
}
"""What happens to a job if the variable has an invalid value."""


def wrong_variables(site: Site, stage: Stage) -> Iterator[Finding]:
    """For each environment variable that can be checked at this stage, yield a finding if the value is invalid."""
    yield from _ours(site)
    for rule in RULES:
        text = site.environ.get(rule.name) if stage in rule.stages else None
        trouble = rule.judge(text, site) if text is not None and (text or rule.name == VISIBLE_DEVICES) else ""
        if trouble:
            fix = (
                f"export {rule.name}={rule.value}"
                if rule.value
                else _("unset {rule}  # or correct the value").format(rule=rule.name)
            )
            found = _("{text!r}: {trouble}").format(text=text, trouble=trouble)
            yield Finding(rule.name, rule.severity, found, expected=rule.expected, why=rule.why, fix=fix)


def _ours(site: Site) -> Iterator[Finding]:
    for variable, problem in wrong_settings(site.environ):
        why = _COSTS.get(variable.name, _("the code that reads this variable ends the job with this error"))
        fix = _("unset {variable}  # or correct the value").format(variable=variable.name)
        if problem.fix.startswith("did you mean"):
            fix = _("{fix}: {how}").format(fix=fix, how=problem.fix)
        yield error(variable.name, problem.found, expected=problem.expected, why=why, fix=fix)
