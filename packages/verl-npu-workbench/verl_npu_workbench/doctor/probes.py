"""Probes that execute something: imports of packages, an operator on each NPU, and a collective over all NPUs.

Each probe runs in a separate process with a time limit, because an import may crash the interpreter and a collective
may hang.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from verl_npu.findings import Finding, error, ok, skipped
from verl_npu.language import gettext as _
from verl_npu.language import ngettext

from ..pins import Component
from ..processes import own_python
from .cann import explain
from .site import Level, Site

_LIBRARY = re.compile(r"\b(lib[\w+-]+\.so(?:\.\d+)*): cannot open shared object")
_SYMBOL = re.compile(r"version [`'\"]?((?:CXXABI|GLIBCXX|GLIBC)_[\w.]+)[`'\"]? not found")
_UNDEFINED = re.compile(r"undefined symbol: \S+")


@dataclass(frozen=True, slots=True)
class Probe:
    """A command that runs in a separate process."""

    name: str
    level: Level
    components: tuple[Component, ...]
    """The packages that the probe needs. If one is not installed, the probe is skipped."""
    command: tuple[str, ...]
    """The command-line arguments for Python."""
    patience: float
    """The time limit in seconds."""
    why: str
    module: str = ""
    """The module to import. Empty if the probe does something else."""

    @property
    def about(self) -> str:
        """A description of the probe: its command, and the reason for running the probe."""
        said = _("Runs `{command}` in a separate process; {why}.")
        return said.format(command=self.again, why=self.why)

    @property
    def again(self) -> str:
        """The command that reruns the probe and prints its full output."""
        return shlex.join(("python", *self.command))


def _import(name: str, module: str, *components: Component, before: str = "") -> Probe:
    code = f"{before}import {module}"
    return Probe(
        f"import-{name}", Level.IMPORT, components, ("-c", code), 300.0, _("every job imports these packages"), module
    )


PROBES = (
    _import("torch", "torch", Component.TORCH),
    _import("torch_npu", "torch_npu", Component.TORCH, Component.TORCH_NPU, before="import torch; "),
    _import("transformers", "transformers.modeling_utils", Component.TRANSFORMERS),
    _import("tensordict", "tensordict", Component.TENSORDICT),
    _import("ray", "ray", Component.RAY),
    _import("vllm", "vllm", Component.VLLM),
    _import("vllm-ascend", "vllm_ascend.platform", Component.VLLM, Component.VLLM_ASCEND),
    _import(
        "megatron",
        "mindspeed.megatron_adaptor",
        Component.MEGATRON,
        Component.MINDSPEED,
        before="import megatron.core; ",
    ),
    _import("verl", "verl.protocol", Component.TORCH),
    Probe(
        "operator",
        Level.DEVICE,
        (Component.TORCH, Component.TORCH_NPU),
        ("-m", "verl_npu_workbench.doctor.on_npus", "operator"),
        180.0,
        _("every training uses these operators"),
    ),
    Probe(
        "collective",
        Level.DEVICE,
        (Component.TORCH, Component.TORCH_NPU),
        ("-m", "verl_npu_workbench.doctor.on_npus", "collective"),
        300.0,
        _("collectives carry gradients and weights between NPUs"),
    ),
)


def probe(site: Site, asked: Probe) -> Iterator[Finding]:
    """Run a probe, and yield a finding that explains its result."""
    absent = [component.value for component in asked.components if site.package(component) is None]
    if site.virtual and absent == [Component.TORCH_NPU.value]:
        absent = []  # virtual NPUs provide torch_npu
    if absent:
        yield skipped(
            asked.name,
            ngettext("{absent} is not installed", "{absent} are not installed", len(absent)).format(
                absent=_(" and ").join(absent)
            ),
        )
        return
    if asked.name == "import-verl" and site.judged is None:
        yield skipped(asked.name, _("there is no verl"))
        return
    started = subprocess.Popen(
        own_python(*asked.command),
        env=dict(site.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # so that its children can be killed with it
    )
    try:
        printed, said = started.communicate(timeout=asked.patience)
    except subprocess.TimeoutExpired:
        _end(started)
        yield error(
            asked.name,
            _("a process that still runs after {patience:g} s").format(patience=asked.patience),
            expected=_("the process to exit within the time limit"),
            why=asked.why,
            fix=_("{again}  # and read CANN's log in ~/ascend/log").format(again=asked.again),
        )
        return
    lines = [line.strip() for line in (said if started.returncode else printed).splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if started.returncode == 0:
        yield ok(asked.name, f"{last or 'works'}{' (SIMULATED)' if site.virtual else ''}")
    else:
        yield _explained(
            site,
            asked,
            last or _("the process ended with status {returncode}").format(returncode=started.returncode),
            said,
        )


def _end(started: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may have just ended
        os.killpg(started.pid, signal.SIGKILL)
    started.communicate()


def _explained(site: Site, asked: Probe, last: str, said: str) -> Finding:
    needed, fix = _("success"), _("{again}  # shows the whole output").format(again=asked.again)
    if library := _LIBRARY.search(said):
        whose, fix = explain(site, library[1])
        needed = _("{library} from {whose}").format(library=library[1], whose=whose)
    elif symbol := _SYMBOL.search(said):
        needed = _("{symbol} in the library that the process loads first").format(symbol=symbol[1])
        fix = _("conda install -c conda-forge libstdcxx-ng  # or use an image with a newer GCC")
    elif _UNDEFINED.search(said):
        needed = _("compiled files that were built for this PyTorch")
        fix = _("verl-npu doctor --only torch-pair,engine-pair  # reports which version is incorrect")
    return error(asked.name, last, expected=needed, why=asked.why, fix=fix)
