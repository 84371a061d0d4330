"""Chooses the torch_npu that virtual NPUs use: an installed wheel, or our own."""

from __future__ import annotations

from pathlib import Path

from . import exposure, variables
from .errors import SettingError
from .settings import Settings


def is_real(settings: Settings) -> bool:
    """Return whether virtual NPUs use the installed torch_npu on top of a stub CANN.

    Raises:
        SettingError: the setting requires an installed torch_npu, but none is installed.
    """
    if settings.torch_npu == "ours":
        return False
    found = wheel()
    if settings.torch_npu == "real" and found is None:
        name = variables.TORCH_NPU.name
        raise SettingError(
            subject=f"{name}=real",
            found="torch_npu is not installed",
            fix=f"pip install --no-deps torch_npu=={_torch()}, or set {name}=ours",
        )
    return found is not None


def wheel() -> Path | None:
    """Return the folder of the installed torch_npu without importing it, or None if there is none."""
    spec = exposure.installed()
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    # A package of that name without libraries cannot use a CANN.
    return folder if any(folder.glob("lib/*.so")) else None


def _torch() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch").partition("+")[0]
    except PackageNotFoundError:
        return "<the version of torch>"
