"""torch.compile on virtual NPUs: Inductor has no code generator for virtual NPUs, so compiled functions run
eagerly."""

from __future__ import annotations

import functools
from collections.abc import Callable

from .reporting import report

LINE = "SIMULATED: torch.compile runs eagerly: Inductor makes no code for virtual NPUs"

_installed = False


def install() -> None:
    """Make torch.compile with the Inductor backend return its argument unchanged. Repeated calls do nothing.

    This applies to the whole process, including tensors on the CPU, because the device is known only when the compiled
    function is called.
    """
    global _installed
    if _installed:
        return
    _installed = True
    import torch

    original = torch.compile

    @functools.wraps(original)
    def compile(model: Callable[..., object] | None = None, **options: object) -> object:
        if options.get("backend") not in (None, "inductor"):
            return original(model, **options)
        report(LINE)
        return (lambda given: given) if model is None else model

    torch.compile = compile
