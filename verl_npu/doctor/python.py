"""The Python that runs this, verl itself, and how verl-npu gets into its processes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

from packaging.version import Version

from ..ascend.matrix import PINS, Component
from ..ascend.variables import AUTOLOAD
from ..environment import SWITCH
from .finding import Finding, error, ok, skipped, warning
from .need import Need
from .site import Site

__all__ = ["judge_patches", "judge_python", "judge_verl", "judge_ways_in"]

_GROUP = "torch.backends"
_NAME = "verl-npu"


def judge_python(site: Site) -> Iterator[Finding]:
    """Whether the pin is meant for this Python."""
    need = Need.of(site, Component.PYTHON)
    if site.virtual or need.met_by(Version(site.python)):
        yield ok("python", site.python)
        return
    version = "3.11" if need.met_by(Version("3.11")) else "3.12" if need.met_by(Version("3.12")) else "3.10"
    yield warning(
        "python",
        site.python,
        needed=str(need),
        why="CANN, torch_npu and vllm-ascend of that time have wheels and tests for these versions only",
        fix=f"conda create -n verl-npu python={version} -y && conda activate verl-npu",
    )


def judge_verl(site: Site) -> Iterator[Finding]:
    """Which verl is here, and whose needs therefore count."""
    judged = site.judged
    if judged is None and site.pin is None:
        yield warning(
            "verl",
            "none in this environment",
            needed=f"one of {', '.join(PINS)}",
            why="without it nothing says which versions the other packages must have; they were not compared",
            fix="pip install verl==0.7.1  # or name the one that you mean: verl-npu doctor --pin v0.7.1",
        )
    elif judged is None:
        yield skipped("verl", "none in this environment", needed=str(site.pin and site.pin.name))
    else:
        compared = site.pin.name if site.pin else judged.pin
        nearness = "" if judged.exact else f", nearest to {judged.pin}"
        other = "" if compared == judged.pin else f"; compared with the needs of {compared}"
        package = site.packages.get("verl")
        yield ok("verl", f"{package or judged.pin}{nearness}{other}")


def judge_patches(site: Site) -> Iterator[Finding]:
    """What `verl-npu check` says."""
    judged = site.judged
    if judged is None:
        yield skipped("patches", "there is no verl to patch")
    elif judged.refused:
        yield error(
            "patches",
            ", ".join(judged.refused),
            needed="a verl, and a transformers, that verl-npu's patches fit",
            why="a feature of which one patch does not fit is left out as a whole",
            fix="verl-npu check --diff  # shows what differs",
        )
    else:
        yield ok("patches", f"all fit {judged.pin}")


def judge_ways_in(site: Site) -> Iterator[Finding]:
    """Whether every process that imports torch loads verl-npu."""
    why = "`import torch` calls it in every process, Ray's workers included; otherwise verl runs unpatched"
    switch = SWITCH.text(site.environ)
    if _NAME not in site.packages:
        yield warning(
            "ways-in",
            "verl-npu is on the path, and not installed",
            needed=f"its entry point in {_GROUP}",
            why=why,
            fix="pip install verl-npu",
        )
    elif not _has_entry_point(site):
        yield error(
            "ways-in",
            f"verl-npu {site.packages[_NAME].version} has no entry point in {_GROUP}",
            needed=f"its entry point in {_GROUP}",
            why=why,
            fix="pip install --force-reinstall --no-deps verl-npu",
        )
    elif site.environ.get(AUTOLOAD) == "0":
        yield error(
            "ways-in",
            f"{AUTOLOAD}=0",
            needed="that variable left out, or 1",
            why="with 0, torch loads neither torch_npu nor verl-npu, and verl finds no NPU",
            fix=f"unset {AUTOLOAD}",
        )
    elif switch == "off":
        yield warning(
            "ways-in",
            f"{SWITCH.name}=off",
            needed="auto or on",
            why="verl runs unpatched in every process of this environment",
            fix=f"unset {SWITCH.name}",
        )
    else:
        yield ok("ways-in", f"{_GROUP}, {SWITCH.name}={switch}")


def _has_entry_point(site: Site) -> bool:
    found = metadata.distributions(name=_NAME, path=list(site.path))
    return any(point.group == _GROUP and point.name == "verl_npu" for each in found for point in each.entry_points)
