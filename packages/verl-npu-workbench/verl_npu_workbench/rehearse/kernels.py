"""Judges the Triton kernels that a rehearsed job launched, using Ascend's compiler and the arguments of these
launches."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from verl_npu import environment
from verl_npu.features.fused_kernels import BLOCKS, MODULE, fused_kernels
from verl_npu.language import gettext as _

from ..kernels import judging, launches, report, toolchain
from ..kernels.toolchain import PAIRS, Soc, Toolchain
from ..kernels.verdict import Kernel
from ..sandbox import importable
from ..sandbox.copies import Copies

_FILE = "launches.jsonl"


def prepare() -> Toolchain:
    """Return the compiler.

    Raises:
        CommandError: the compiler cannot be installed.
    """
    return toolchain.prepare(PAIRS[0])


def variables(chain: Toolchain, folder: Path) -> Mapping[str, str]:
    """Return the environment variables that make a job record its kernel launches in a folder, and that provide Triton
    if none is installed."""
    return {environment.LAUNCHES.name: str(folder / _FILE), environment.KERNEL_TRITON.name: str(chain.folder)}


def judge(
    chain: Toolchain,
    soc: Soc,
    tree: Path,
    folders: tuple[Path, Path],
    states: Mapping[str, Sequence[str]],
    unconfined: bool,
) -> report.Report:
    """Return the verdict on each kernel that a job launched.

    Args:
        chain: the compiler.
        soc: the NPU to compile for.
        tree: the job's source tree.
        folders: the folder that the job wrote to, and a folder that only verl-npu writes to.
        states: the states of verl-npu's features in the job's processes.
        unconfined: whether to compile without a sandbox.

    Raises:
        CommandError: the file that the job wrote does not contain a list of launches.
        SandboxError: a sandbox cannot be created on this machine.
    """
    began = time.monotonic()
    request = judging.Request(toolchain=chain, soc=soc, unconfined=unconfined)
    written, own = folders
    copied = Copies(written, _FILE, own).poll()
    seen = [_checked(each, tree) for file in copied for each in launches.read(file)]
    if "applied" in states.get(fused_kernels.name, ()):
        seen = [with_our_blocks(each) for each in seen]
    judged, unread = launches.judge(seen, request)
    return report.Report(
        judged=tuple(judged), unread=unread, root=Path.cwd(), request=request, seconds=time.monotonic() - began
    )


def _checked(kernel: Kernel, tree: Path) -> Kernel:
    """Return the kernel. If its file is outside the job's packages, return it without arguments, so that it is not
    judged.

    The file's name is not trusted, because the job's code may have written it.
    """
    file = Path(kernel.file).resolve()
    known = (tree, *importable(tree), *map(Path, (sys.prefix, sys.base_prefix)))
    if any(file.is_relative_to(each.resolve()) for each in known):
        return kernel
    return replace(kernel, cases=(), why=_("{file} is not in the job's packages").format(file=kernel.file))


def with_our_blocks(kernel: Kernel) -> Kernel:
    """Return a kernel with additional cases: the block sizes that verl-npu uses if the compiler rejects upstream's
    block sizes."""
    blocks = BLOCKS.get(kernel.name)
    if blocks is None or kernel.module != MODULE:
        return kernel
    label = _("{blocks}, which verl-npu uses if the compiler refuses upstream's").format(
        blocks=report.said_blocks(blocks.ours)
    )
    ours = [
        replace(case, constants={**case.constants, **blocks.ours}, label=label)
        for case in kernel.cases
        if {name: case.constants.get(name) for name in blocks.upstreams} == blocks.upstreams
    ]
    return replace(kernel, cases=(*kernel.cases, *ours))
