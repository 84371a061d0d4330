"""Reads and judges recorded kernel launches, and runs programs on virtual NPUs in order to record their launches."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from verl_npu import environment
from verl_npu.ascend.variables import VIRTUAL_NPUS
from verl_npu.errors import CommandError
from verl_npu.language import gettext as _

from ..processes import ProcessTree
from . import fitting, judging, targets
from .judging import Request
from .targets import Target
from .toolchain import Toolchain
from .verdict import Judged, Kernel

_SCHEMA = 1
_MOST_BYTES = 256 << 20
_LOOK, _PATIENCE = 0.1, 10.0
"""The seconds between two checks of a program, and the seconds that an interrupted program gets to end."""


def read(path: Path) -> list[Kernel]:
    """For each launch in a file, return the kernel with the launch's arguments. The file's content is not trusted.

    Raises:
        CommandError: the file cannot be read, has another format, or has no launches.
    """
    try:
        size = path.stat().st_size
        lines = path.read_text(errors="replace").splitlines() if size <= _MOST_BYTES else []
    except OSError as error:
        raise _no_launches(path, str(error.strerror)) from error
    if size > _MOST_BYTES:
        raise _no_launches(path, _("a file of {size} MiB").format(size=size >> 20))
    found = [_launch(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise _no_launches(path, _("a file without launches"))
    # Parallel processes record the same launches.
    return list({(each.file, each.name, repr(each.cases)): each for each in found}.values())


def _launch(path: Path, number: int, line: str) -> Kernel:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.get("schema") != _SCHEMA or not content.get("cases"):
        raise _no_launches(path, _("line {number}: {text}").format(number=number, text=line[:80]))
    grid = content.get("grid")
    numbers = tuple(each for each in grid if isinstance(each, int)) if isinstance(grid, list) else ()
    kernel = judging.kernel_of({**content, "name": content.get("kernel"), "why": _why(content["cases"])})
    cases = tuple(replace(each, grid=numbers) for each in kernel.cases)
    return replace(kernel, cases=() if kernel.why else cases)


def _why(cases: object) -> str:
    each = cases[0] if isinstance(cases, list) and isinstance(cases[0], dict) else {}
    return str(each.get("why", ""))


def _no_launches(path: Path, found: str) -> CommandError:
    return CommandError(
        subject=str(path),
        expected=_("a file of recorded Triton kernel launches, one launch in each line"),
        found=found,
        fix=_(
            "record the launches again: run the program with {virtual}=1 and {name}=FILE; the program must "
            "import torch before triton, and launch its kernels on tensors of virtual NPUs"
        ).format(virtual=VIRTUAL_NPUS, name=environment.LAUNCHES.name),
    )


def judge(launched: Sequence[Kernel], request: Request) -> tuple[list[Judged], Mapping[str, str]]:
    """Return the verdicts on the launches, grouped by source tree. Also return the files that could not be read, with
    the reason for each file.

    Raises:
        SandboxError: a sandbox cannot be created on this machine.
    """
    judged: list[Judged] = []
    unread: dict[str, str] = {}
    for target, kernels in _by_target(launched):
        known = judging.read(target, request)
        unread |= known.unread
        sources = {(each.file, each.name): each.source for each in known.kernels}
        done = judging.judge(target, [_with_source(each, sources) for each in kernels], request)
        judged += fitting.fit(target, done, request) if request.fit else done
    return judged, unread


def _by_target(launched: Sequence[Kernel]) -> Iterator[tuple[Target, list[Kernel]]]:
    found: dict[Path, list[Kernel]] = {}
    for each in launched:
        file = Path(each.file)
        root = targets.root_of(file) if file.is_file() else file.parent
        found.setdefault(root, []).append(each)
    for root, kernels in found.items():
        files = dict.fromkeys(Path(each.file) for each in kernels if Path(each.file).is_file())
        yield Target(root, tuple(files)), kernels


def _with_source(kernel: Kernel, sources: Mapping[tuple[str, str], str]) -> Kernel:
    source = sources.get((kernel.file, kernel.name))
    if source:
        return replace(kernel, source=source)
    why = kernel.why or _("{file} has no kernel of this name at its top level").format(file=kernel.file)
    return replace(kernel, cases=(), why=why)


def run(command: Sequence[str], chain: Toolchain, file: Path) -> int:
    """Run a program on virtual NPUs, record its kernel launches in a file, and return its exit status.

    The program's output goes to stderr, because verl-npu's own output goes to stdout.

    Raises:
        CommandError: the program cannot be started.
    """
    variables = {
        VIRTUAL_NPUS: "1",
        **os.environ,
        environment.LAUNCHES.name: str(file),
        environment.KERNEL_TRITON.name: str(chain.folder),
    }
    with os.fdopen(os.dup(2), "wb") as stderr:
        tree = ProcessTree()
        try:
            process = tree.start(command, variables, stderr).process
            while process.poll() is None:
                time.sleep(_LOOK)
        except OSError as error:
            raise CommandError(
                subject=command[0],
                expected=_("a program that can be started"),
                found=str(error.strerror),
                fix=_("check the program's name and path"),
            ) from error
        finally:
            tree.end(_PATIENCE)
    return process.returncode
