"""What the entry points of verl-npu name, a function for each, so that a process can say which one activated it.

The rest is imported under protection, so that no damage to its files ends `import torch`, which calls this in every
process. This module stands alone, and is short, for that reason.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

entering = ""
"""Which entry point is being called: the package activates itself when it is imported, and asks for it."""


def torch_backends() -> None:
    """The entry point of `torch.backends`: called at the end of `import torch`, it never raises."""
    _enter("the entry point torch.backends")


def vllm_general_plugins() -> None:
    """The entry point of `vllm.general_plugins`."""
    _enter("the entry point vllm.general_plugins")


def __getattr__(name: str) -> Callable[[], None]:
    # verl loads its plugins and calls none: the look-up is all that is seen of it.
    if name != "verl_plugins":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _enter("the entry point verl.plugins")
    return lambda: None


def _enter(origin: str) -> None:
    global entering
    entering = origin
    try:
        from verl_npu.activation import activate
    except Exception as error:
        # An error of these says what somebody has to fix elsewhere.
        if type(error).__module__ == "verl_npu.errors":
            raise
        _give_up(error)
    else:
        activate(origin)
    finally:
        entering = ""


def _give_up(error: Exception) -> None:
    # The package imports this module of its own first of all.
    leave_verl = getattr(sys.modules.get("verl_npu.damage"), "leave_verl", None)
    if leave_verl is not None:
        leave_verl(error)
        return
    switch, strict = (os.environ.get(name, "").strip().lower() for name in ("VERL_NPU", "VERL_NPU_STRICT"))
    if switch == "off":
        return
    if switch == "on" or strict not in ("", "0"):
        # The import of verl fails.
        sys.modules["verl"] = None  # type: ignore[assignment]
    if sys.stderr is not None:
        line = f"verl_npu cannot be loaded: {type(error).__name__}: {error}; install verl-npu again"
        sys.stderr.write(f"verl-npu: {line}; it stays off in this process\n")
