"""The start of both scripts: check the request, create the environment, and continue inside the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from verl_npu_workbench import translations  # noqa: F401  # it is imported for what it does
from verl_npu_workbench.processes import Signalled, ended_whole

from harness import environment, jobs, machine, pins
from harness.errors import BadInput, RunFailed, Stopped
from harness.pins import SCRIPTS
from harness.request import Request, parse
from verl_npu.environment import LANGUAGE
from verl_npu.language import gettext as _
from verl_npu.language import speaking_to_the_user, translate

INSIDE = "VERL_NPU_HARNESS_INSIDE"
BAD_INPUT, FAILED = 2, 1


def main(program: str, smoke: bool, run: Callable[[Request, machine.Machine], int]) -> int:
    """Run a script and return its exit status: 0 for success, 1 for a failed run, 2 for bad input."""
    return whole(program, lambda: _main(program, smoke, run))


def whole(program: str, run: Callable[[], int]) -> int:
    """Run a function, with messages in the user's language. Return the function's exit status or, if it raises an
    error, the error's exit status. A signal ends the function and every process that the function has started."""
    with speaking_to_the_user(LANGUAGE.text()):
        try:
            with ended_whole():
                return run()
        except BadInput as error:
            return _said(f"{program}: {translate(error.args[0])}", BAD_INPUT)
        except RunFailed as error:
            return _said(f"{program}: FAILED: {translate(error.args[0])}", FAILED)
        except (Signalled, Stopped) as error:
            said = translate(_("interrupted"))  # the catalogue does not find texts inside an f-string
            return _said(f"{program}: {said}", error.status)


def _said(line: str, status: int) -> int:
    print(line, file=sys.stderr)
    return status


def _main(program: str, smoke: bool, run: Callable[[Request, machine.Machine], int]) -> int:
    arguments = sys.argv[1:]
    request = parse(arguments, program, smoke)
    found = machine.look(request.npus, os.environ.get(INSIDE) or sys.executable)
    if request.make_environment and INSIDE not in os.environ:
        if request.rollout != pins.SMALL and not found.virtual:
            raise BadInput(
                _(
                    "--rollout: this option applies only to virtual NPUs, but this machine has real NPUs. Remove "
                    "--rollout"
                )
            )
        if request.torch_npu and not found.virtual:
            raise BadInput(
                _(
                    "--torch-npu: this option applies only to virtual NPUs, but this machine has real NPUs. "
                    "Remove --torch-npu"
                )
            )
        recipe = environment.Recipe(
            request.pin,
            request.checkout,
            request.transformers,
            found.virtual,
            packages=jobs.JOBS[request.job].packages,
            rollout=request.rollout,
            torch_npu=request.torch_npu,
        )
        python = environment.make(recipe)
        become(
            [str(python), str(SCRIPTS / f"{Path(program).stem}.py"), *arguments],
            os.environ | {INSIDE: sys.executable} | _virtual(request),
        )
    return run(request, found)


def become(command: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Replace this process with another program, so that signals reach that program directly."""
    sys.stdout.flush()
    os.execve(command[0], command, variables)


def _virtual(request: Request) -> dict[str, str]:
    """Return the environment variables that allow the script to import an installed torch_npu wheel on virtual
    NPUs."""
    return {"VIRTUAL_ASCEND": os.environ.get("VIRTUAL_ASCEND", str(request.npus))} if request.torch_npu else {}
