"""Starts virtual-ascend in a process that requests virtual NPUs.

If VIRTUAL_ASCEND is set, `virtual_ascend.pth` and `virtual_ascend_entry` import this module as Python starts. Waiting
for torch would be too late: torch imports the entry points of installed packages in no fixed order, and a torch_npu
that came first would find no CANN. The end of `import torch` calls `autoload`.
"""

from __future__ import annotations

import contextlib
import os

from . import is_loaded, variables
from .errors import VirtualAscendError
from .settings import Settings

EXTENSIONS = "virtual_ascend.extensions"
"""The entry point group of packages that extend virtual NPUs."""

_exposed = False
_finished = False


def autoload() -> None:
    """Load virtual-ascend. If loading fails, issue a warning instead of raising an error, because no error may escape
    at the end of `import torch`."""
    from .reporting import warn

    if not variables.asked_for():
        return
    try:
        load()
    except VirtualAscendError as error:
        warn(f"{error}; this process has no virtual NPUs")
    except Exception as error:
        # An error in virtual-ascend must neither break `import torch` nor leave a torch_npu that cannot be imported.
        from virtual_ascend_entry import damage

        from . import exposure

        exposure.withdraw()
        warn(damage(error))


def expose() -> None:
    """Make `torch_npu` importable. Repeated calls do nothing. Raises the same errors as `virtual_ascend.expose`."""
    from . import camem, choice, exposure, imports, vision

    global _exposed
    settings = Settings.read()
    if variables.CACHE.text():
        # A child process may have another working directory.
        os.environ[variables.CACHE.name] = str(settings.cache)
    is_real = choice.is_real(settings)
    if is_real:
        from .real import loading

        loading.expose()
    else:
        exposure.expose(first=settings.torch_npu == "ours")
        camem.stand_in()
    if not _exposed:
        _exposed = True
        imports.after("torchvision.extension", vision.declare_operators)
        if is_real:
            imports.after("torch_npu", lambda _: _finish())


def load() -> None:
    """Load virtual-ascend. Repeated calls do nothing. Raises the same errors as `virtual_ascend.load`."""
    from . import choice, loading
    from .real import loading as real

    expose()
    (real if choice.is_real(Settings.read()) else loading).load()
    _finish()


def _finish() -> None:
    """Call the extensions, after virtual NPUs are loaded."""
    global _finished
    if _finished or not is_loaded():
        return
    _finished = True
    from importlib.metadata import entry_points

    from . import eager
    from .reporting import warn

    eager.install()
    for extension in entry_points(group=EXTENSIONS):
        try:
            extension.load()()
        except Exception as error:
            # The error is from another package, and the virtual NPUs are loaded.
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            warn(f"{extension.value}, which {extension.name} adds to virtual NPUs, is missing in this process: {said}")


# Python itself must start. `autoload` gets the same error and reports it.
if variables.asked_for():
    with contextlib.suppress(VirtualAscendError):
        expose()
