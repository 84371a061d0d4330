"""torch.compile on virtual NPUs: Inductor has no code generator for them, so what it would compile runs as it is."""

from __future__ import annotations

import functools
from collections.abc import Callable

from .reporting import report

LINE = "SIMULATED: torch.compile runs eagerly: Inductor makes no code for virtual NPUs"

_installed = False


def install() -> None:
    """Have torch.compile return what it is given, unless another backend than Inductor is asked for. Once.

    That holds for all of this process, tensors on the CPU included: what is compiled is known only when it is called.
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
