"""The targets of verl-npu's entry points: one function for each, so that a process can say which one activated it.

Every process calls this module at the end of `import torch`. It guards the import of the package, so that damaged
files cannot make `import torch` fail. For that reason it is short and stands alone.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

entering = ""
"""The entry point that is being called. The package activates itself when it is imported, and reads this name."""


def torch_backends() -> None:
    """Serve the entry point `torch.backends`. Called at the end of `import torch`, it never raises."""
    _enter("the entry point torch.backends")


def vllm_general_plugins() -> None:
    """Serve the entry point `vllm.general_plugins`."""
    _enter("the entry point vllm.general_plugins")


def __getattr__(name: str) -> Callable[[], None]:
    # verl loads its plugins without calling them, so this look-up is all that we see.
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
        # Such an error names a fault outside our files.
        if type(error).__module__ == "verl_npu.errors":
            raise
        _give_up(error)
    else:
        activate(origin)
    finally:
        entering = ""


def _give_up(error: Exception) -> None:
    # The package imports `damage` before all its other modules.
    leave_verl = getattr(sys.modules.get("verl_npu.damage"), "leave_verl", None)
    if leave_verl is not None:
        leave_verl(error)
        return
    switch, strict = (os.environ.get(name, "").strip().lower() for name in ("VERL_NPU", "VERL_NPU_STRICT"))
    if switch == "off":
        return
    if switch == "on" or strict not in ("", "0"):
        # This makes the import of verl fail.
        sys.modules["verl"] = None  # type: ignore[assignment]
    if sys.stderr is not None:
        line = f"verl_npu cannot be loaded: {type(error).__name__}: {error}; install verl-npu again"
        sys.stderr.write(f"verl-npu: {line}; it stays off in this process\n")
