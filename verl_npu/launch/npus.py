"""How many NPUs this host gives to a job."""

from __future__ import annotations

from collections.abc import Mapping

from .. import environment
from ..ascend.variables import VISIBLE_DEVICES
from ..doctor.npu_smi import ask
from ..errors import LaunchError

__all__ = ["count"]


def count(environ: Mapping[str, str], expected: int | None) -> int:
    """Return how many NPUs there are, as npu-smi and ASCEND_RT_VISIBLE_DEVICES say; virtual ones if there are those.

    Raises:
        LaunchError: there are none, or not as many as `expected`.
    """
    found, source = _found(environ)
    shown = environ.get(VISIBLE_DEVICES)
    if found and shown is not None:
        found = min(found, len([each for each in shown.split(",") if each.strip().isdecimal()]))
        source += f", of which {VISIBLE_DEVICES}={shown} shows {found}"
    if found and expected in (None, found):
        return found
    fix = "see `verl-npu doctor`; VERL_NPU_VIRTUAL=2 uses two virtual NPUs"
    if found:
        fix = f"say --npus {found}, or leave --npus out"
    raise LaunchError(subject="NPUs of this host", expected=str(expected or "at least one"), found=source, fix=fix)


def _found(environ: Mapping[str, str]) -> tuple[int, str]:
    virtual = environment.VIRTUAL.read(environ)
    if virtual:
        return int(virtual), f"{virtual:g} virtual"
    answer = ask(environ)
    return len(answer.npus), answer.problem or f"{len(answer.npus)} by npu-smi"
