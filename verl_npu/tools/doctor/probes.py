"""What is really run: imports of the packages, an operator on each NPU, a collective over all of them.

Each is a process of its own with a time limit: an import may end the interpreter, and a collective may hang.
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

from ...findings import Finding, error, ok, skipped
from ...pins import Component
from ..processes import own_python
from .cann import explain
from .site import Level, Site

__all__ = ["PROBES", "Probe", "probe"]

_LIBRARY = re.compile(r"\b(lib[\w+-]+\.so(?:\.\d+)*): cannot open shared object")
_SYMBOL = re.compile(r"version [`'\"]?((?:CXXABI|GLIBCXX|GLIBC)_[\w.]+)[`'\"]? not found")
_UNDEFINED = re.compile(r"undefined symbol: \S+")


@dataclass(frozen=True, slots=True)
class Probe:
    """One process."""

    name: str
    level: Level
    components: tuple[Component, ...]
    """What must be installed; otherwise the probe is skipped."""
    command: tuple[str, ...]
    """The arguments of Python."""
    patience: float
    """In seconds."""
    why: str

    @property
    def again(self) -> str:
        """The command that shows all of it."""
        return shlex.join(("python", *self.command))


def _import(name: str, module: str, *components: Component, before: str = "") -> Probe:
    code = f"{before}import {module}"
    return Probe(f"import-{name}", Level.IMPORT, components, ("-c", code), 300.0, "every job imports it")


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
    Probe(
        "import-verl",
        Level.IMPORT,
        (Component.TORCH,),
        ("-c", "import verl.protocol"),
        300.0,
        "every job imports it",
    ),
    Probe(
        "operator",
        Level.DEVICE,
        (Component.TORCH, Component.TORCH_NPU),
        ("-m", "verl_npu.tools.doctor.on_npus", "operator"),
        180.0,
        "training is made of such operators",
    ),
    Probe(
        "collective",
        Level.DEVICE,
        (Component.TORCH, Component.TORCH_NPU),
        ("-m", "verl_npu.tools.doctor.on_npus", "collective"),
        300.0,
        "gradients and weights go from NPU to NPU this way",
    ),
)


def probe(site: Site, asked: Probe) -> Iterator[Finding]:
    """Run one, and explain how it ended."""
    absent = [component.value for component in asked.components if site.package(component) is None]
    if site.virtual and absent == [Component.TORCH_NPU.value]:
        absent = []  # virtual NPUs bring one
    if absent:
        yield skipped(asked.name, f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed")
        return
    if asked.name == "import-verl" and site.judged is None:
        yield skipped(asked.name, "there is no verl")
        return
    started = subprocess.Popen(
        own_python(*asked.command),
        env=dict(site.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # it is ended with all that it starts
    )
    try:
        printed, said = started.communicate(timeout=asked.patience)
    except subprocess.TimeoutExpired:
        _end(started)
        yield error(
            asked.name,
            f"has not ended after {asked.patience:g} s",
            expected="an end",
            why=asked.why,
            fix=f"{asked.again}  # and look into CANN's log in ~/ascend/log",
        )
        return
    lines = [line.strip() for line in (said if started.returncode else printed).splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if started.returncode == 0:
        yield ok(asked.name, f"{last or 'works'}{' (SIMULATED)' if site.virtual else ''}")
    else:
        yield _explained(site, asked, last or f"the process ended with status {started.returncode}", said)


def _end(started: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may have ended just now
        os.killpg(started.pid, signal.SIGKILL)
    started.communicate()


def _explained(site: Site, asked: Probe, last: str, said: str) -> Finding:
    needed, fix = "that it works", f"{asked.again}  # shows all of it"
    if library := _LIBRARY.search(said):
        whose, fix = explain(site, library[1])
        needed = f"{library[1]}, of {whose}"
    elif symbol := _SYMBOL.search(said):
        needed = f"{symbol[1]} in the library that the process loads first"
        fix = "conda install -c conda-forge libstdcxx-ng  # or use an image with a newer GCC"
    elif _UNDEFINED.search(said):
        needed = "compiled parts that were built for this PyTorch"
        fix = "verl-npu doctor --only torch-pair,engine-pair  # says which version is wrong"
    return error(asked.name, last, expected=needed, why=asked.why, fix=fix)
