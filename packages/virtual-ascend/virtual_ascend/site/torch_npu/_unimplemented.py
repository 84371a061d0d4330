"""Names that torch_npu has and virtual-ascend does not implement: they exist, and raise an error when they are
called."""

from __future__ import annotations

from collections.abc import Container
from typing import NoReturn

from packaging.version import Version
from virtual_ascend import names, variables
from virtual_ascend.settings import Settings

# The first version of public names that no `__all__` of the wheels lists.
_UNLISTED = {
    "torch_npu": {"Format": "2.5.1.post1"},
    "torch_npu.npu": {"ipc_collect": "2.7.1"},
    "torch_npu.npu.utils": {"ipc_collect": "2.7.1"},
    "torch_npu.profiler": {"HostSystem": "2.5.1.post1"},
}


class Unimplemented:
    """A placeholder for one name. A call raises NotImplementedError."""

    __slots__ = ("__name__",)

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *_args: object, **_options: object) -> NoReturn:
        name = variables.NPUS.name
        raise NotImplementedError(f"{self.__name__} is not implemented by the virtual Ascend ({name} is set)")

    def __or__(self, _other: object) -> Unimplemented:
        """Return this placeholder, so that it can be used in an annotation such as `torch.npu.NPUGraph | None`."""
        return self

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"<{self.__name__}: not implemented by the virtual Ascend>"


def not_implemented(name: str) -> Unimplemented:
    """Return a callable that raises a NotImplementedError containing `name`."""
    return Unimplemented(name)


class Absent:
    """Hides an inherited member of a class in virtual-ascend's torch_npu, because the emulated torch_npu version does
    not have this member."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(f"{owner.__name__!r} object has no attribute {self._name!r}")


def is_older_than(version: str) -> bool:
    """Return whether the emulated torch_npu version is older than `version`."""
    return names.release(Settings.read().torch_npu_version) < Version(version)


def leave_out(module: str, content: dict[str, object], public: list[str]) -> list[str]:
    """From the content of a module, remove the names that exist only in other versions of torch_npu. Return the names
    in `public` that remain."""
    newer = [name for name, since in _UNLISTED.get(module, {}).items() if is_older_than(since)]
    for name in (*names.outside(module, Settings.read().torch_npu_version), *newer):
        content.pop(name, None)
    return [name for name in public if name in content]


def missing(module: str, written: Container[str]) -> dict[str, Unimplemented]:
    """Return placeholders for the public names of a module in the emulated torch_npu version, except the names in
    `written`."""
    offered = names.of_module(module, Settings.read().torch_npu_version)
    return {name: not_implemented(f"{module}.{name}") for name in offered if name not in written}
