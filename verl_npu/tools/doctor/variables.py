"""The environment variables that the documents of the pins name: does each hold what its reader takes."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from ... import environment
from ...ascend.variables import ALLOCATOR, EXPANDABLE_SEGMENTS, NZ, SHARED, VISIBLE_DEVICES
from ...features import wrong_settings
from ...findings import Finding, Severity, Stage, error, ok
from ...pins import Component
from .machine import read_ranges
from .site import Site

__all__ = ["RULES", "VariableRule", "judge_variables", "unreadable_devices", "wrong_variables"]

Judge = Callable[[str, Site], str]
"""Given the text of the variable, returns what is wrong with it, or an empty text."""


@dataclass(frozen=True, slots=True)
class VariableRule:
    """What one variable may hold."""

    name: str
    judge: Judge
    expected: str
    why: str
    severity: Severity = Severity.WARNING
    stages: tuple[Stage, ...] = (Stage.ENVIRONMENT,)
    """From a script, too, if the text alone says it."""
    value: str = ""
    """What to set instead; empty if the variable is best left out."""


def _one_of(*words: str) -> Judge:
    return lambda text, site: "" if text in words else "none of these"


def _number(least: float, most: float = float("inf")) -> Judge:
    def judge(text: str, site: Site) -> str:
        try:
            value = float(text)
        except ValueError:
            return "no number"
        return "" if least <= value <= most else "out of its range"

    return judge


def unreadable_devices(text: str) -> str:
    """Return what is wrong with a list of visible NPUs on any machine, or an empty text."""
    numbers = [each.strip() for each in text.split(",")]
    if not text.strip():
        return "no NPU at all"
    if not all(number.isdecimal() for number in numbers):
        return "not numbers"
    if len({*numbers}) < len(numbers):
        return "a number twice"
    return ""


def _visible(text: str, site: Site) -> str:
    if trouble := unreadable_devices(text):
        return trouble
    numbers = [each.strip() for each in text.split(",")]
    npus = site.smi.npus
    count = int(site.virtual) if site.virtual.isdecimal() else len(npus)
    # A container that has only the last cards may call them by their numbers on the host; an A3 card has two.
    last = 0 if site.virtual else max(((npu.card + 1) * (2 if npu.kind == "a3" else 1) for npu in npus), default=0)
    beyond = [number for number in numbers if count and int(number) >= max(count, last)]
    return f"{', '.join(beyond)}, and there are {count} NPUs here" if beyond else ""


def _ports(text: str, site: Site) -> str:
    return "" if text.strip().lower() == "auto" or read_ranges(text) else "no range of ports"


def _address(text: str, site: Site) -> str:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return "no IP address"
    return ""


def _interface(text: str, site: Site) -> str:
    here = [folder.name for folder in site.at("/sys/class/net").glob("*")]
    without = text.startswith("^")
    exact = text.lstrip("^").startswith("=")
    names = [name.removeprefix("=") for name in text.lstrip("^").split(",") if name]
    found = [each for each in here if any(each == name if exact else each.startswith(name) for name in names)]
    if not here or (found and not without) or (without and len(found) < len(here)):
        return ""
    return f"no such interface; here are {', '.join(sorted(here))}"


def _sleeping(text: str, site: Site) -> str:
    serves = site.package(Component.VLLM_ASCEND) is not None
    return "vllm-ascend cannot sleep with it" if serves and EXPANDABLE_SEGMENTS in text.replace(" ", "") else ""


def _weight_format(text: str, site: Site) -> str:
    engine = site.package(Component.VLLM_ASCEND)
    unread = engine is not None and engine.parsed is not None and engine.parsed < _READS_NZ
    return "" if unread or text == NZ.value else "not 0"


def _without_v1(text: str, site: Site) -> str:
    vllm = site.package(Component.VLLM)
    recent = vllm is not None and vllm.parsed is not None and vllm.parsed.release >= (0, 11)
    return "vLLM has no V0 engine from 0.11 on" if text == "0" and recent else ""


def _preloaded(text: str, site: Site) -> str:
    missing = [each for each in re.split(r"[:\s]+", text) if each.startswith("/") and not Path(each).is_file()]
    return f"no such file: {', '.join(missing)}" if missing else ""


_SECONDS = "a number of seconds"
_READS_NZ = Version("0.11.0rc1")
"""The first vllm-ascend that reads the variable."""
_HCCL_REFUSES = "HCCL refuses other values when the first communicator is made"
_HCCL_MEETS = "the ranks of HCCL meet over it, and do not find each other"
_BOTH = "names of network interfaces that every host has"

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
        "expandable_segments:False, or left out",
        "its sleep mode ends with `Expandable segments are not compatible with memory pool`",
    ),
    VariableRule(
        VISIBLE_DEVICES,
        _visible,
        "numbers of NPUs of this machine, separated by commas, each once",
        "CANN ends with an error, or shows fewer NPUs than the job is told to use",
        Severity.ERROR,
    ),
    VariableRule(
        "TASK_QUEUE_ENABLE", _one_of("0", "1", "2"), "0, 1 or 2", "torch_npu reads these three levels", stages=_EITHER
    ),
    VariableRule(
        "ASCEND_LAUNCH_BLOCKING",
        _one_of("0"),
        "0, or left out",
        "each operator is waited for: training is several times slower, and graphs cannot be captured",
        stages=_EITHER,
    ),
    VariableRule(
        "NPU_FA2_SPARSE_MODE",
        _one_of("2", "3"),
        "2 or 3",
        "transformers' NPU attention ends its import with a ValueError",
        Severity.ERROR,
        stages=_EITHER,
    ),
    VariableRule("VLLM_USE_V1", _without_v1, "1, or left out", "the engine does not start", Severity.ERROR),
    VariableRule(
        "HCCL_CONNECT_TIMEOUT",
        _number(120, 7200),
        f"{_SECONDS} from 120 to 7200",
        _HCCL_REFUSES,
        value="1500",
        stages=_EITHER,
    ),
    VariableRule(
        "HCCL_EXEC_TIMEOUT",
        _number(0, 2**31 - 1),
        f"{_SECONDS} from 0 to {2**31 - 1}",
        _HCCL_REFUSES,
        value="3600",
        stages=_EITHER,
    ),
    VariableRule(
        "HCCL_BUFFSIZE", _number(1), "a number of MB, at least 1", _HCCL_REFUSES, value="200", stages=_EITHER
    ),
    VariableRule(
        "HCCL_IF_BASE_PORT",
        _number(1024, 65520),
        "a port from 1024 to 65520",
        _HCCL_REFUSES,
        value="60000",
        stages=_EITHER,
    ),
    VariableRule("HCCL_IF_IP", _address, "an IP address of this host", _HCCL_MEETS, stages=_EITHER),
    VariableRule(
        "HCCL_HOST_SOCKET_PORT_RANGE", _ports, "a range such as 60000-60050, or auto", _HCCL_REFUSES, stages=_EITHER
    ),
    VariableRule(
        "HCCL_NPU_SOCKET_PORT_RANGE", _ports, "a range such as 61000-61050, or auto", _HCCL_REFUSES, stages=_EITHER
    ),
    VariableRule("HCCL_SOCKET_IFNAME", _interface, _BOTH, _HCCL_MEETS),
    VariableRule(
        "GLOO_SOCKET_IFNAME",
        _interface,
        _BOTH,
        "the process group of the CPU ends with `Unable to find address for` that name",
        Severity.ERROR,
    ),
    VariableRule("TP_SOCKET_IFNAME", _interface, _BOTH, "TensorPipe meets over it"),
    VariableRule(
        "LD_PRELOAD", _preloaded, "files that are there", "each process prints an error of ld.so, and lacks it"
    ),
)
"""What is judged beside VERL_NPU_*; a variable without a rule is taken as it is."""


def judge_variables(site: Site) -> Iterator[Finding]:
    """One finding for each variable that is wrong, or one for all."""
    wrong = [*wrong_variables(site, Stage.ENVIRONMENT)]
    yield from wrong
    if not wrong:
        names = {rule.name for rule in RULES} | {shared.name for shared in SHARED}
        count = len(names & {*site.environ})
        yield ok("variables", f"{count} of those that the documents name set, none of them wrongly")


_ENDS = "the import of verl ends with this error"
_ENDS_UNDER_STRICT = f"with {environment.STRICT.name}=1 {_ENDS}"
_COSTS = {
    environment.SWITCH.name: f"verl-npu stays off, and verl runs unpatched; {_ENDS_UNDER_STRICT}",
    environment.STRICT.name: _ENDS,
    environment.DISABLE.name: f"what is no feature is not switched off; {_ENDS_UNDER_STRICT}",
    environment.FORCE.name: f"what is no feature is not forced; {_ENDS_UNDER_STRICT}",
}
"""What a wrong variable does to a job."""


def wrong_variables(site: Site, stage: Stage) -> Iterator[Finding]:
    """Yield a finding for each variable of a site that is wrong, as far as that can be told at this stage."""
    yield from _ours(site)
    for rule in RULES:
        text = site.environ.get(rule.name) if stage in rule.stages else None
        trouble = rule.judge(text, site) if text is not None and (text or rule.name == VISIBLE_DEVICES) else ""
        if trouble:
            fix = f"export {rule.name}={rule.value}" if rule.value else f"unset {rule.name}  # or correct it"
            found = f"{text!r}: {trouble}"
            yield Finding(rule.name, rule.severity, found, expected=rule.expected, why=rule.why, fix=fix)


def _ours(site: Site) -> Iterator[Finding]:
    for variable, problem in wrong_settings(site.environ):
        why = _COSTS.get(variable.name, "what reads it ends the job with this error")
        fix = f"unset {variable.name}  # or correct it"
        if problem.fix.startswith("did you mean"):
            fix += f": {problem.fix}"
        yield error(variable.name, problem.found, expected=problem.expected, why=why, fix=fix)
